//! Just enough of Rust's grammar to see which modules of its own crate a source file names.

use std::collections::BTreeSet;

/// A name or a piece of punctuation; `::` is one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Word(&'a str),
    PathSeparator,
    /// A string or a character, with its quotes.
    Literal(&'a str),
    Other(char),
}

/// The tokens of a source, without comments.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment_len(rest)
        } else if let Some(len) = literal_len(rest) {
            tokens.push(Token::Literal(&rest[..len]));
            len
        } else if first.is_alphanumeric() || first == '_' {
            let len = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            tokens.push(Token::Word(&rest[..len]));
            len
        } else if rest.starts_with("::") {
            tokens.push(Token::PathSeparator);
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Other(first));
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// Block comments nest.
fn block_comment_len(source: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    loop {
        let rest = &source[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += rest.chars().next().map_or(0, char::len_utf8);
        }
        if depth == 0 || at == source.len() {
            return at;
        }
    }
}

/// The length of the string, raw string or character that the source starts with. A lifetime is
/// none of these.
fn literal_len(source: &str) -> Option<usize> {
    let unprefixed = source.strip_prefix(['b', 'c']).unwrap_or(source);
    let prefix = source.len() - unprefixed.len();
    if let Some(raw) = unprefixed.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = prefix + 1 + hashes + 1;
            return Some(
                source[body..]
                    .find(&end)
                    .map_or(source.len(), |at| body + at + end.len()),
            );
        }
    }
    let quote = unprefixed
        .chars()
        .next()
        .filter(|c| matches!(c, '"' | '\''))?;
    let mut inside = unprefixed.char_indices().skip(1);
    if quote == '\'' {
        // 'x' or '\n' is a character; 'x without a second quote is a lifetime.
        let (_, first) = inside.next()?;
        let (_, second) = inside.next()?;
        if first != '\\' && second != '\'' {
            return None;
        }
        inside = unprefixed.char_indices().skip(1);
    }
    while let Some((at, c)) = inside.next() {
        if c == '\\' {
            inside.next();
        } else if c == quote {
            return Some(prefix + at + 1);
        }
    }
    Some(source.len())
}

/// A name at the top of the crate that a source file mentions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) module: String,
    /// Mentioned in tests alone.
    pub(crate) in_tests: bool,
}

/// What a file at `path` (its place in the module tree) names by `crate::` and `super::`.
pub(crate) fn imports(source: &str, path: &[&str]) -> BTreeSet<Import> {
    let tokens = tokens(source);
    let mut found = BTreeSet::new();
    let mut modules: Vec<&str> = path.to_vec();
    // For each inline module: the depth of braces outside of it.
    let mut inline = Vec::new();
    let mut depth = 0;
    for at in 0..tokens.len() {
        match tokens[at..] {
            [Token::Word("mod"), Token::Word(name), Token::Other('{'), ..] => {
                inline.push(depth);
                modules.push(name);
            }
            [Token::Other('{'), ..] => depth += 1,
            [Token::Other('}'), ..] => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    modules.pop();
                }
            }
            [Token::Word("crate" | "super"), Token::PathSeparator, ..]
                if at == 0 || tokens[at - 1] != Token::PathSeparator =>
            {
                let mut names = BTreeSet::new();
                path_targets(&tokens[at..], &modules, &mut names);
                let in_tests = modules.contains(&"tests");
                found.extend(names.into_iter().map(|module| Import { module, in_tests }));
            }
            _ => {}
        }
    }
    found
}

/// Follows one path, or a group of paths, from `base`, and notes which top-level names it leads to.
/// Returns the tokens behind it.
fn path_targets<'t, 'a>(
    tokens: &'t [Token<'a>],
    base: &[&str],
    found: &mut BTreeSet<String>,
) -> &'t [Token<'a>] {
    match tokens {
        [Token::Word("crate"), Token::PathSeparator, rest @ ..] => path_targets(rest, &[], found),
        [Token::Word("self"), Token::PathSeparator, rest @ ..] => path_targets(rest, base, found),
        [Token::Word("super"), Token::PathSeparator, rest @ ..] => {
            path_targets(rest, &base[..base.len().saturating_sub(1)], found)
        }
        [Token::Other('{'), rest @ ..] => {
            let mut rest = rest;
            loop {
                rest = match rest {
                    [] | [Token::Other('}'), ..] => return rest.get(1..).unwrap_or_default(),
                    [Token::Other(','), rest @ ..] => rest,
                    _ => path_targets(rest, base, found),
                };
            }
        }
        [name, rest @ ..] => {
            match (base, name) {
                ([top, ..], _) => found.insert((*top).to_owned()),
                ([], Token::Word(name)) => found.insert((*name).to_owned()),
                // A glob, or something that we do not know: named so that no list allows it.
                ([], other) => found.insert(format!("{other:?}")),
            };
            element_rest(rest)
        }
        [] => tokens,
    }
}

/// What follows the rest of a path inside a group: from the comma or the brace that ends it.
fn element_rest<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Other('{') => depth += 1,
            Token::Other(',' | '}') if depth == 0 => return &tokens[at..],
            Token::Other('}') => depth -= 1,
            Token::Other(';') => return &tokens[at..],
            _ => {}
        }
    }
    &[]
}
