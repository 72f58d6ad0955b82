//! Directories below /run/rnic.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes a directory that its owner alone may enter, and those above it, which others enter too:
/// programs without any right find rnicd's socket there, and what they see of their devices.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    let mut above = DirBuilder::new();
    if let Some(parent) = path.parent() {
        above.recursive(true).mode(0o755).create(parent)?;
    }
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_last_is_private() {
        let top = std::env::temp_dir().join(format!("rnic-directory-{}", std::process::id()));
        let path = top.join("inner");
        make_private(&path).unwrap();
        make_private(&path).unwrap();
        let open = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o001 != 0;
        assert_eq!((open(&top), open(&path)), (true, false));
        fs::remove_dir_all(top).unwrap();
    }
}
