//! Which file of a crate takes which names from which other, read from the sources.

mod paths;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use paths::{Found, Paths};
use reader::Modules;

/// One file naming an item that another file of its crate defines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) name: String,
    /// Named by tests alone.
    pub(crate) in_tests: bool,
}

/// What the sources of one crate say.
pub(crate) struct Crate {
    pub(crate) imports: BTreeSet<Import>,
    /// Paths into the crate that lead to nothing that this reader knows, and globs outside of
    /// tests: the search would overlook what they name.
    pub(crate) unknown: BTreeSet<(PathBuf, String)>,
    pub(crate) files: BTreeSet<PathBuf>,
}

impl Crate {
    /// Reads a crate from its root file on.
    pub(crate) fn read(root: &Path) -> Self {
        let Modules { by_path, files } = Modules::read(root);
        let paths = Paths { modules: &by_path };
        let (mut imports, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        for (at, module) in &by_path {
            for mention in &module.mentions {
                let used = |name: &String| module.words.contains(name);
                if !mention.exported_as.as_ref().is_none_or(used) {
                    continue;
                }
                let path = &mention.path;
                if mention.glob && module.in_tests {
                    if let Some(base) = paths.resolve_module(at, path, 0) {
                        imports.insert(Import {
                            from: module.file.clone(),
                            to: by_path[&base].file.clone(),
                            name: "*".to_owned(),
                            in_tests: true,
                        });
                    }
                    continue;
                }
                match paths.resolve(at, path, 0) {
                    Found::Item(definer, name) => {
                        let to = by_path[&definer].file.clone();
                        if to != module.file {
                            imports.insert(Import {
                                from: module.file.clone(),
                                to,
                                name,
                                in_tests: module.in_tests,
                            });
                        }
                    }
                    Found::Module(_) if mention.glob => {
                        unknown.insert((module.file.clone(), format!("{}::*", path.join("::"))));
                    }
                    // What is named in it is a path of its own.
                    Found::Module(_) | Found::Elsewhere => {}
                    Found::Nothing => {
                        unknown.insert((module.file.clone(), path.join("::")));
                    }
                }
            }
        }
        Self {
            imports,
            unknown,
            files,
        }
    }
}

/// The circles among files: each set of files that reach each other by imports outside of tests,
/// with the names that tie it.
pub(crate) fn circles(imports: &BTreeSet<Import>) -> Vec<Vec<&Import>> {
    let mut onward: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for import in imports.iter().filter(|import| !import.in_tests) {
        onward.entry(&import.from).or_default().insert(&import.to);
    }
    let reached = |from: &Path| {
        let mut reached: BTreeSet<PathBuf> = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for next in onward.get(file).into_iter().flatten() {
                if reached.insert((*next).to_owned()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&Path, BTreeSet<PathBuf>> =
        onward.keys().map(|file| (*file, reached(file))).collect();
    let together = |a: &Path, b: &Path| {
        reach.get(a).is_some_and(|reached| reached.contains(b))
            && reach.get(b).is_some_and(|reached| reached.contains(a))
    };
    let mut circles: BTreeMap<&Path, Vec<&Import>> = BTreeMap::new();
    for import in imports.iter().filter(|import| !import.in_tests) {
        if together(&import.from, &import.to) {
            // The first file of a circle stands for it.
            let first = reach
                .keys()
                .find(|file| together(file, &import.from))
                .unwrap();
            circles.entry(first).or_default().push(import);
        }
    }
    circles.into_values().collect()
}
