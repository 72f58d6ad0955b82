//! Follows paths from module to module.

use std::collections::BTreeMap;

use super::reader::Module;

/// Where a path leads.
pub(super) enum Found {
    Item(Vec<String>, String),
    Module(Vec<String>),
    /// Another crate, or a local name.
    Elsewhere,
    Nothing,
}

/// The paths of a crate, of which these are the modules.
pub(super) struct Paths<'a> {
    pub(super) modules: &'a BTreeMap<Vec<String>, Module>,
}

impl Paths<'_> {
    /// Follows a path to a module.
    pub(super) fn resolve_module(
        &self,
        at: &[String],
        path: &[String],
        depth: usize,
    ) -> Option<Vec<String>> {
        match self.resolve(at, path, depth) {
            Found::Module(module) => Some(module),
            _ => None,
        }
    }

    /// Follows a path from a module to where its item is defined.
    pub(super) fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Found {
        if depth > 16 {
            return Found::Nothing;
        }
        let Some(first) = path.first() else {
            return Found::Module(at.to_vec());
        };
        match first.as_str() {
            "crate" => self.descend(&[], &path[1..], depth),
            "self" => self.descend(at, &path[1..], depth),
            "super" => self.resolve_super(at, path, depth),
            _ => {
                let module = &self.modules[at];
                if module.items.contains(first)
                    || module.uses.contains_key(first)
                    || self.is_module(at, first)
                {
                    return self.descend(at, path, depth);
                }
                match self.through_globs(at, path, depth) {
                    Found::Nothing => Found::Elsewhere,
                    found => found,
                }
            }
        }
    }

    fn resolve_super(&self, at: &[String], path: &[String], depth: usize) -> Found {
        let ups = path.iter().take_while(|name| *name == "super").count();
        match at.len().checked_sub(ups) {
            Some(len) => self.descend(&at[..len], &path[ups..], depth),
            None => Found::Nothing,
        }
    }

    fn is_module(&self, at: &[String], name: &str) -> bool {
        let mut child = at.to_vec();
        child.push(name.to_owned());
        self.modules.contains_key(&child)
    }

    /// Follows the rest of a path downward from a module.
    fn descend(&self, at: &[String], path: &[String], depth: usize) -> Found {
        let [name, rest @ ..] = path else {
            return Found::Module(at.to_vec());
        };
        if name == "self" {
            return self.descend(at, rest, depth);
        }
        let module = &self.modules[at];
        // A function and a module may share a name: as the last of a path it is the function.
        let is_module = self.is_module(at, name);
        if is_module && !rest.is_empty() {
            let child = [at, std::slice::from_ref(name)].concat();
            return self.descend(&child, rest, depth);
        }
        if module.items.contains(name) {
            return Found::Item(at.to_vec(), name.clone());
        }
        for used in module.uses.get(name).into_iter().flatten() {
            let whole = [used.as_slice(), rest].concat();
            // `use foo::foo;` beside `mod foo;`: not itself again.
            match self.resolve_use(at, &whole, depth + 1) {
                Found::Nothing => {}
                found => return found,
            }
        }
        if is_module {
            return Found::Module([at, std::slice::from_ref(name)].concat());
        }
        if module.made_by_macros.contains(name) {
            return Found::Item(at.to_vec(), name.clone());
        }
        self.through_globs(at, path, depth)
    }

    /// Follows a path from a module through its globs: a test's `use super::*` brings names as
    /// well.
    fn through_globs(&self, at: &[String], path: &[String], depth: usize) -> Found {
        for glob in &self.modules[at].globs {
            if let Some(base) = self.resolve_module(at, glob, depth + 1)
                && base != at
            {
                match self.descend(&base, path, depth + 1) {
                    Found::Nothing => {}
                    found => return found,
                }
            }
        }
        Found::Nothing
    }

    /// Follows the path of a `use`: its first name is a crate's, a module's or an item's, not the
    /// name that it makes.
    fn resolve_use(&self, at: &[String], path: &[String], depth: usize) -> Found {
        if depth > 16 {
            return Found::Nothing;
        }
        match path[0].as_str() {
            "crate" | "self" | "super" => self.resolve(at, path, depth),
            first if self.is_module(at, first) && path.len() > 1 => self.descend(at, path, depth),
            first if path.len() > 1 && self.modules[at].items.contains(first) => {
                Found::Item(at.to_vec(), first.to_owned())
            }
            first if path.len() > 1 && self.modules[at].uses.contains_key(first) => {
                self.descend(at, path, depth)
            }
            _ => Found::Elsewhere,
        }
    }
}
