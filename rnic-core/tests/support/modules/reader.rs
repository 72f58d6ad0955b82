//! Reads what the modules of a crate define and name, from the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{Token, tokens};

/// The modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) by_path: BTreeMap<Vec<String>, Module>,
    pub(super) files: BTreeSet<PathBuf>,
}

/// A module: a file, or an inline part of one.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) file: PathBuf,
    pub(super) in_tests: bool,
    /// Items that are defined here.
    pub(super) items: BTreeSet<String>,
    /// What `use` brings in, by local name, as paths in the module's own terms.
    pub(super) uses: BTreeMap<String, Vec<Vec<String>>>,
    pub(super) globs: Vec<Vec<String>>,
    /// Paths that are named here.
    pub(super) mentions: BTreeSet<Mention>,
    /// Words that stand in macros at the top of the module: these may define items.
    pub(super) made_by_macros: BTreeSet<String>,
    /// All words that stand outside of `use`.
    pub(super) words: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mention {
    pub(super) path: Vec<String>,
    /// Of a re-export: the local name. It counts where the module itself uses that name.
    pub(super) exported_as: Option<String>,
    pub(super) glob: bool,
}

impl Modules {
    /// Reads a crate from its root file on.
    pub(super) fn read(root: &Path) -> Self {
        let mut read = Self::default();
        let directory = root.parent().unwrap().to_owned();
        read.file(root, &directory, Vec::new(), false);
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
    found: &'a mut Modules,
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
            let inner = self.found.by_path.get_mut(&child).unwrap();
            inner.globs.push(vec!["super".to_owned()]);
            // What is there for tests alone is an item of the module all the same.
            module.items.extend(inner.items.iter().cloned());
        }
        self.found.by_path.insert(path, module);
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
        .take_while(|token| **token != Token::Other('{'))
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
