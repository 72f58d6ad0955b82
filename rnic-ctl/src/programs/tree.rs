//! A directory of small files that programs read for as long as they run, and nobody removes when
//! they end. Its name is a function of what it holds, so that all runs have the same one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::geteuid;

/// More directories than these are removed, if no program was started with them for so long. (The
/// addresses of an interface change, and each change makes another directory.)
const KEPT: usize = 32;
const OLD: Duration = Duration::from_secs(60 * 60);

/// Only its owner renames what is in a directory of this mode.
const STICKY: u32 = 0o1000;

/// How many directories of one name with something else in them are passed over.
const ATTEMPTS: u32 = 8;

/// What a directory holds, by paths in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tree(BTreeMap<PathBuf, Node>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    Directory,
    File(String),
    /// To another path in the directory.
    Link(PathBuf),
}

impl Tree {
    pub(super) fn directory(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        let above = path.ancestors().filter(|path| *path != Path::new(""));
        for path in above {
            self.0.entry(path.to_owned()).or_insert(Node::Directory);
        }
    }

    pub(super) fn file(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.add(path.into(), Node::File(text.into()));
    }

    /// Adds a link to another path in the directory. It becomes an absolute one: programs that follow
    /// links themselves would take a relative one for the kernel's.
    pub(super) fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) {
        self.add(path.into(), Node::Link(target.into()));
    }

    fn add(&mut self, path: PathBuf, node: Node) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.0.insert(path, node);
    }

    /// Returns the path of a directory in `place` that holds all this and nothing else, of this
    /// name or one like it. Makes it unless it is there. Several processes may do so at once.
    pub(super) fn write(&self, place: &Path, name: &str) -> io::Result<PathBuf> {
        for attempt in 0..ATTEMPTS {
            let directory = match attempt {
                0 => place.join(name),
                attempt => place.join(format!("{name}-{attempt}")),
            };
            if self.is_in(&directory) {
                // It is in use, for `sweep`.
                let now = SystemTime::now();
                let _ = File::open(&directory).and_then(|file| file.set_modified(now));
                return Ok(directory);
            }
            let beside = place.join(format!("sysfs-new-{:016x}", getrandom::u64()?));
            let done = self
                .make(&beside, &directory)
                .and_then(|()| fs::rename(&beside, &directory));
            if done.is_err() {
                let _ = fs::remove_dir_all(&beside);
            }
            match done {
                Ok(()) => {
                    sweep(place, &directory);
                    return Ok(directory);
                }
                Err(why) => match why.kind() {
                    // Another process was first, or it holds something else.
                    io::ErrorKind::AlreadyExists
                    | io::ErrorKind::DirectoryNotEmpty
                    | io::ErrorKind::NotADirectory => {
                        if self.is_in(&directory) {
                            return Ok(directory);
                        }
                    }
                    _ => return Err(why),
                },
            }
        }
        Err(io::Error::other("others have changed what is there"))
    }

    /// Makes the directory, which is going to be `named`.
    fn make(&self, directory: &Path, named: &Path) -> io::Result<()> {
        fs::create_dir(directory)?;
        // Readable, whatever the umask of this process is.
        let all = Permissions::from_mode(0o755);
        fs::set_permissions(directory, all.clone())?;
        // A directory comes before what it holds.
        for (path, node) in &self.0 {
            let path = directory.join(path);
            match node {
                Node::Directory => {
                    fs::create_dir(&path)?;
                    fs::set_permissions(&path, all.clone())?;
                }
                Node::File(text) => {
                    File::create_new(&path)?.write_all(text.as_bytes())?;
                    fs::set_permissions(&path, Permissions::from_mode(0o444))?;
                }
                Node::Link(target) => symlink(named.join(target), &path)?,
            }
        }
        Ok(())
    }

    /// Returns whether a directory holds all this and nothing else.
    fn is_in(&self, directory: &Path) -> bool {
        let mut paths = vec![PathBuf::new()];
        let is_so = self.0.iter().all(|(path, node)| {
            let there = directory.join(path);
            let Ok(metadata) = fs::symlink_metadata(&there) else {
                return false;
            };
            match node {
                Node::Directory => {
                    paths.push(path.clone());
                    metadata.is_dir()
                }
                Node::File(text) => {
                    metadata.is_file() && fs::read(&there).is_ok_and(|read| read == text.as_bytes())
                }
                Node::Link(target) => {
                    let target = directory.join(target);
                    fs::read_link(&there).is_ok_and(|read| read == target)
                }
            }
        });
        let holds = |path: &PathBuf| fs::read_dir(directory.join(path)).map(Iterator::count).ok();
        let found: Option<usize> = paths.iter().map(holds).sum();
        is_so && found == Some(self.0.len())
    }
}

/// Makes a place for directories of this user, unless it is there. Fails where another user can
/// change what is in it, or has put something there for us to follow.
pub(super) fn own(place: &Path) -> io::Result<()> {
    let user = geteuid();
    let mode = if user.is_root() && place.starts_with("/run") {
        0o755
    } else {
        0o700
    };
    match DirBuilder::new().mode(mode).create(place) {
        // Whatever the umask of this process is.
        Ok(()) => fs::set_permissions(place, Permissions::from_mode(mode))?,
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        Err(_) => (),
    }
    let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let found = fs::symlink_metadata(place)?;
    if !found.is_dir() {
        return refuse("it is no directory");
    }
    if found.uid() != user.as_raw() {
        return refuse("it is another user's");
    }
    if found.mode() & 0o022 != 0 {
        return refuse("others may write there");
    }
    let above = fs::metadata(place.parent().unwrap_or(Path::new("/")))?;
    let others = match above.uid() {
        // Its group is this user's choice.
        owner if owner == user.as_raw() => 0o002,
        0 => 0o022,
        _ => return refuse("the directory above is another user's"),
    };
    match above.mode() & others != 0 && above.mode() & STICKY == 0 {
        true => refuse("others may rename it"),
        false => Ok(()),
    }
}

/// Removes the directories that were not used for the longest time, but never `kept`.
fn sweep(place: &Path, kept: &Path) {
    let is_ours = |name: OsString| name.to_str().is_some_and(|name| name.starts_with("sysfs-"));
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| is_ours(entry.file_name()) && entry.path() != kept);
    let mut all: Vec<_> = ours
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    all.sort();
    let surplus = all.len().saturating_sub(KEPT);
    let is_old = |used: &SystemTime| used.elapsed().is_ok_and(|since| since > OLD);
    for (_, path) in all.iter().take(surplus).filter(|(used, _)| is_old(used)) {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A place of this test alone.
    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rnic-tree-{name}-{}", std::process::id()));
        own(&path).unwrap();
        path
    }

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.file("a/b/file", "text\n");
        tree.directory("a/empty");
        tree.link("link", "a/b");
        tree
    }

    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn many_processes_have_the_same_directory() {
        let place = place("same");
        let directories: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| tree().write(&place, "sysfs-1").unwrap()))
                .collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            results.collect()
        });
        let expected = place.join("sysfs-1");
        assert!(directories.iter().all(|directory| *directory == expected));
        assert_eq!(names(&place), ["sysfs-1"]);
        let file = expected.join("link/file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text\n");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o444);
        assert_eq!(fs::metadata(&expected).unwrap().mode() & 0o777, 0o755);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn what_was_changed_is_not_used() {
        type Change = fn(&Path);
        let changes: [Change; 5] = [
            |at| {
                let _ = fs::remove_file(at.join("a/b/file"));
                fs::write(at.join("a/b/file"), "other\n").unwrap();
            },
            |at| fs::remove_file(at.join("link")).unwrap(),
            |at| fs::remove_dir(at.join("a/empty")).unwrap(),
            |at| fs::write(at.join("a/empty/more"), "").unwrap(),
            |at| {
                fs::remove_dir_all(at).unwrap();
                fs::write(at, "").unwrap();
            },
        ];
        let place = place("changed");
        for (number, change) in changes.iter().enumerate() {
            let name = format!("sysfs-{number}");
            change(&tree().write(&place, &name).unwrap());
            for _ in 0..2 {
                let directory = tree().write(&place, &name).unwrap();
                assert_eq!(directory, place.join(format!("{name}-1")));
                assert!(tree().is_in(&directory));
            }
        }
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_place_that_others_can_change_is_refused() {
        let root = place("others");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let refused = |path: &Path| own(path).unwrap_err().to_string();
        own(&root.join("own")).unwrap();
        assert_eq!(
            fs::metadata(root.join("own")).unwrap().mode() & 0o777,
            0o700
        );
        own(&root.join("own")).unwrap();
        mode(&root.join("own"), 0o770);
        assert_eq!(refused(&root.join("own")), "others may write there");
        // Whatever it leads to.
        symlink("own", root.join("link")).unwrap();
        symlink("nowhere", root.join("loose")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        for name in ["link", "loose", "file"] {
            assert_eq!(refused(&root.join(name)), "it is no directory", "{name}");
        }
        mode(&root, 0o777);
        assert_eq!(refused(&root.join("new")), "others may rename it");
        mode(&root, 0o1777);
        own(&root.join("new")).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(root.join("new"), Some(65534), None).unwrap();
            assert_eq!(refused(&root.join("new")), "it is another user's");
            std::os::unix::fs::chown(&root, Some(65534), None).unwrap();
            let why = "the directory above is another user's";
            assert_eq!(refused(&root.join("newer")), why);
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_oldest_are_removed_when_they_are_many() {
        let place = place("many");
        let now = SystemTime::now();
        let make = |name: String, age: Duration| {
            let path = place.join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
            File::open(&path).unwrap().set_modified(now - age).unwrap();
        };
        for number in 0..KEPT as u32 {
            make(format!("sysfs-{number:02}"), OLD * 2 + OLD * number);
        }
        make("sysfs-new-1".into(), OLD * 100);
        make("other".into(), OLD * 200);
        tree().write(&place, "sysfs-mine").unwrap();
        let left = names(&place);
        assert_eq!(left.len(), KEPT + 2, "{left:?}");
        for name in ["other", "sysfs-00", "sysfs-31", "sysfs-mine"] {
            assert!(left.iter().any(|left| left == name), "{name}: {left:?}");
        }
        for number in 0..5 {
            make(format!("sysfs-young-{number}"), Duration::ZERO);
        }
        sweep(&place, &place.join("sysfs-mine"));
        let left = names(&place);
        let young = left.iter().filter(|name| name.contains("young")).count();
        assert_eq!((left.len(), young), (KEPT + 2, 5), "{left:?}");
        fs::remove_dir_all(&place).unwrap();
    }
}
