//! Which file of a crate takes which names from which other, read from the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::source::{Token, tokens};

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
#[derive(Debug, Default)]
pub(crate) struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
    pub(crate) imports: BTreeSet<Import>,
    /// Paths into the crate that lead to nothing that this reader knows, and globs outside of tests: the search would
    /// overlook what they name.
    pub(crate) unknown: BTreeSet<(PathBuf, String)>,
    pub(crate) files: BTreeSet<PathBuf>,
}

/// A module: a file, or an inline part of one.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    in_tests: bool,
    /// Items that are defined here.
    items: BTreeSet<String>,
    /// What `use` brings in, by local name, as paths in the module's own terms.
    uses: BTreeMap<String, Vec<Vec<String>>>,
    globs: Vec<Vec<String>>,
    /// Paths that are named here.
    mentions: BTreeSet<Mention>,
    /// Words that stand in macros at the top of the module: these may define items.
    made_by_macros: BTreeSet<String>,
    /// All words that stand outside of `use`.
    words: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mention {
    path: Vec<String>,
    /// Of a re-export: the local name. It counts where the module itself uses that name.
    exported_as: Option<String>,
    glob: bool,
}

impl Crate {
    /// Reads a crate from its root file on.
    pub(crate) fn read(root: &Path) -> Self {
        let mut read = Self::default();
        let directory = root.parent().unwrap().to_owned();
        read.file(root, &directory, Vec::new(), false);
        read.resolve_all();
        read
    }

    /// Reads a file as a module. Its children's files lie in `children`.
    fn file(&mut self, file: &Path, children: &Path, path: Vec<String>, in_tests: bool) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens = tokens(&text);
        self.files.insert(file.to_owned());
        let mut reader = Reader {
            file,
            found: self,
            outside: Vec::new(),
        };
        reader.module(&tokens, children, path, in_tests);
        for Outside {
            file,
            children,
            path,
            in_tests,
        } in reader.outside
        {
            self.file(&file, &children, path, in_tests);
        }
    }

    fn resolve_all(&mut self) {
        let (mut imports, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        for (at, module) in &self.modules {
            for mention in &module.mentions {
                let used = |name: &String| module.words.contains(name);
                if !mention.exported_as.as_ref().is_none_or(used) {
                    continue;
                }
                let path = &mention.path;
                if mention.glob && module.in_tests {
                    if let Some(base) = self.resolve_module(at, path, 0) {
                        imports.insert(Import {
                            from: module.file.clone(),
                            to: self.modules[&base].file.clone(),
                            name: "*".to_owned(),
                            in_tests: true,
                        });
                    }
                    continue;
                }
                match self.resolve(at, path, 0) {
                    Found::Item(definer, name) => {
                        let to = self.modules[&definer].file.clone();
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
        self.imports = imports;
        self.unknown = unknown;
    }

    fn resolve_module(&self, at: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        match self.resolve(at, path, depth) {
            Found::Module(module) => Some(module),
            _ => None,
        }
    }

    /// Follows a path from a module to where its item is defined.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Found {
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
                // A test's `use super::*` brings names as well.
                for glob in &module.globs {
                    if let Some(base) = self.resolve_module(at, glob, depth + 1)
                        && base != at
                    {
                        match self.descend(&base, path, depth + 1) {
                            Found::Nothing => {}
                            found => return found,
                        }
                    }
                }
                Found::Elsewhere
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
        for glob in &module.globs {
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

    /// Follows the path of a `use`: its first name is a crate's, a module's or an item's, not the name that it makes.
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

enum Found {
    Item(Vec<String>, String),
    Module(Vec<String>),
    /// Another crate, or a local name.
    Elsewhere,
    Nothing,
}

/// A module in a file of its own, still to be read.
struct Outside {
    file: PathBuf,
    children: PathBuf,
    path: Vec<String>,
    in_tests: bool,
}

struct Reader<'a> {
    file: &'a Path,
    found: &'a mut Crate,
    outside: Vec<Outside>,
}

impl Reader<'_> {
    /// Reads a module from the tokens between its braces, or of its file.
    fn module(&mut self, tokens: &[Token<'_>], children: &Path, path: Vec<String>, in_tests: bool) {
        let mut module = Module {
            file: self.file.to_owned(),
            in_tests,
            ..Module::default()
        };
        // What `#[cfg(test)]` stands before, as if it stood in a module of tests.
        let mut tests = Vec::new();
        let mut source_path = None;
        let (mut at, mut depth) = (0, 0);
        while at < tokens.len() {
            let rest = &tokens[at..];
            let mut taken = 1;
            match *rest {
                [Token::Other('#'), Token::Other('['), ref attribute @ ..] => {
                    let len = group_len(&rest[1..]);
                    if let [
                        Token::Word("path"),
                        Token::Other('='),
                        Token::Literal(literal),
                        ..,
                    ] = *attribute
                    {
                        source_path = Some(literal.trim_matches('"').to_owned());
                    }
                    taken = 1 + len;
                    if attribute.starts_with(&CFG_TEST) {
                        let item = &rest[taken..];
                        let len = item_len(item);
                        if let Some((name, body)) = inline_module(&item[..len]) {
                            let child = [path.clone(), vec![name.to_owned()]].concat();
                            self.module(body, &children.join(name), child, true);
                        } else if let Some(name) = outside_module(&item[..len]) {
                            self.outside(children, &path, name, source_path.take(), true);
                        } else if depth == 0 {
                            tests.extend_from_slice(&item[..len]);
                        }
                        taken += len;
                    }
                }
                [Token::Word("mod"), Token::Word(name), Token::Other('{'), ..] => {
                    let len = group_len(&rest[2..]);
                    let child = [path.clone(), vec![name.to_owned()]].concat();
                    let body = &rest[3..2 + len - 1];
                    self.module(body, &children.join(name), child, in_tests);
                    taken = 2 + len;
                }
                [Token::Word("mod"), Token::Word(name), Token::Other(';'), ..] => {
                    self.outside(children, &path, name, source_path.take(), in_tests);
                    taken = 3;
                }
                [Token::Word("use"), ..] if rest.get(1) != Some(&Token::Other('<')) => {
                    let len = rest
                        .iter()
                        .position(|token| *token == Token::Other(';'))
                        .unwrap_or(rest.len());
                    let exported =
                        at > 0 && matches!(tokens[at - 1], Token::Word("pub") | Token::Other(')'));
                    use_tree(&rest[1..len], Vec::new(), exported, &mut module);
                    taken = len;
                }
                [Token::Other('{'), ..] => depth += 1,
                [Token::Other('}'), ..] => depth -= 1,
                [
                    Token::Word("macro_rules"),
                    Token::Other('!'),
                    Token::Word(name),
                    ..,
                ] => {
                    module.items.insert(name.to_owned());
                    let body = &rest[3..3 + group_len(&rest[3..])];
                    for pair in body.windows(2) {
                        if let [Token::Word(keyword), Token::Word(made)] = pair
                            && ITEMS.contains(keyword)
                        {
                            module.made_by_macros.insert((*made).to_owned());
                        }
                    }
                }
                [Token::Word(keyword), Token::Word(name), ..]
                    if depth == 0 && ITEMS.contains(&keyword) =>
                {
                    module.items.insert(name.to_owned());
                }
                // What a macro makes at the top of a module is not seen: its words may be items.
                [Token::Word(_), Token::Other('!'), Token::Other('{'), ..] if depth == 0 => {
                    let len = group_len(&rest[2..]);
                    let words = rest[2..2 + len].iter().filter_map(|token| match token {
                        Token::Word(word) => Some((*word).to_owned()),
                        _ => None,
                    });
                    module.made_by_macros.extend(words);
                }
                [Token::Word(first), ..] => {
                    let preceded = at > 0 && tokens[at - 1] == Token::PathSeparator;
                    module.words.insert(first.to_owned());
                    if !preceded && rest.get(1) == Some(&Token::PathSeparator) {
                        let path = path_words(rest);
                        taken = 2 * path.len() - 1;
                        module.mentions.insert(Mention {
                            path,
                            exported_as: None,
                            glob: false,
                        });
                    }
                }
                _ => {}
            }
            at += taken;
        }
        if !tests.is_empty() {
            let child = [path.clone(), vec!["(cfg test)".to_owned()]].concat();
            self.module(&tests, children, child.clone(), true);
            let inner = self.found.modules.get_mut(&child).unwrap();
            inner.globs.push(vec!["super".to_owned()]);
            // What is there for tests alone is an item of the module all the same.
            module.items.extend(inner.items.iter().cloned());
        }
        self.found.modules.insert(path, module);
    }

    fn outside(
        &mut self,
        children: &Path,
        path: &[String],
        name: &str,
        source_path: Option<String>,
        in_tests: bool,
    ) {
        let path = [path, &[name.to_owned()]].concat();
        let (flat, nested) = (
            children.join(name).with_extension("rs"),
            children.join(name).join("mod.rs"),
        );
        let (file, children) = match source_path {
            Some(given) => {
                let file = normal(&self.file.parent().unwrap().join(given));
                let children = file.parent().unwrap().to_owned();
                (file, children)
            }
            None if flat.exists() => (flat, children.join(name)),
            None => (nested, children.join(name)),
        };
        self.outside.push(Outside {
            file,
            children,
            path,
            in_tests,
        });
    }
}

const ITEMS: [&str; 9] = [
    "struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod",
];

const CFG_TEST: [Token<'static>; 5] = [
    Token::Word("cfg"),
    Token::Other('('),
    Token::Word("test"),
    Token::Other(')'),
    Token::Other(']'),
];

/// A path without `..` inside.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == std::path::Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// The length of a group, from its opening token to its closing one.
fn group_len(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Other('{' | '[' | '(') => depth += 1,
            Token::Other('}' | ']' | ')') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The length of an item or a statement: to its semicolon, or to the end of its body.
fn item_len(tokens: &[Token<'_>]) -> usize {
    let is_use = tokens
        .iter()
        .take(6)
        .any(|token| *token == Token::Word("use"));
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Other(';') => return at + 1,
            Token::Other('{') if !is_use => return at + group_len(&tokens[at..]),
            Token::Other('{' | '[' | '(') => at += group_len(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

fn inline_module<'t, 'a>(item: &'t [Token<'a>]) -> Option<(&'a str, &'t [Token<'a>])> {
    let start = item.iter().position(|token| *token == Token::Word("mod"))?;
    match item[start..] {
        [
            Token::Word("mod"),
            Token::Word(name),
            Token::Other('{'),
            ref body @ ..,
            Token::Other('}'),
        ] if start <= 4 => Some((name, body)),
        _ => None,
    }
}

fn outside_module<'a>(item: &[Token<'a>]) -> Option<&'a str> {
    match *item {
        [.., Token::Word("mod"), Token::Word(name), Token::Other(';')] => Some(name),
        _ => None,
    }
}

/// The words of a path.
fn path_words(tokens: &[Token<'_>]) -> Vec<String> {
    let mut path = Vec::new();
    let mut rest = tokens;
    while let [Token::Word(word), ..] = rest {
        path.push((*word).to_owned());
        match rest {
            [_, Token::PathSeparator, Token::Word(_), ..] => rest = &rest[2..],
            _ => break,
        }
    }
    path
}

/// Notes what one tree of a `use` names, and under what local names.
fn use_tree(tokens: &[Token<'_>], mut path: Vec<String>, exported: bool, module: &mut Module) {
    let mut rest = tokens;
    loop {
        match rest {
            [Token::PathSeparator, tail @ ..] => rest = tail,
            [Token::Word("as"), Token::Word(name), ..] => {
                return bind(path, name, exported, module);
            }
            [Token::Word(word), tail @ ..] => {
                path.push((*word).to_owned());
                rest = tail;
            }
            [Token::Other('*'), ..] => {
                module.globs.push(path.clone());
                module.mentions.insert(Mention {
                    path,
                    exported_as: None,
                    glob: true,
                });
                return;
            }
            [Token::Other('{'), body @ .., Token::Other('}')] => {
                let mut start = 0;
                let mut at = 0;
                while at <= body.len() {
                    match body.get(at) {
                        None | Some(Token::Other(',')) => {
                            if start < at {
                                use_tree(&body[start..at], path.clone(), exported, module);
                            }
                            start = at + 1;
                            at += 1;
                        }
                        Some(Token::Other('{')) => at += group_len(&body[at..]),
                        Some(_) => at += 1,
                    }
                }
                return;
            }
            _ => break,
        }
    }
    // `self` at the end names what stands before it.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(name) = path.last().cloned() {
        bind(path, &name, exported, module);
    }
}

fn bind(mut path: Vec<String>, name: &str, exported: bool, module: &mut Module) {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let bound = module.uses.entry(name.to_owned()).or_default();
    bound.push(path.clone());
    module.mentions.insert(Mention {
        path,
        exported_as: exported.then(|| name.to_owned()),
        glob: false,
    });
}

/// The circles among files: each set of files that reach each other by imports outside of tests, with the names that tie it.
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
