//! Static tokens from a file in the format of kube-apiserver's `--token-auth-file`.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::User;

/// A token file that cannot be used.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("cannot read token file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Of opening or reading the file.
        source: std::io::Error,
    },
    /// A line is neither `token,user,uid` nor `token,user,uid,"group1,group2"`.
    #[error(
        "line {line} of token file {} is not a token: expected token,user,uid or \
         token,user,uid,\"group1,group2\"",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
}

/// Reads a file: each token with its user.
pub(crate) fn read_tokens(path: &Path) -> Result<Vec<(String, User)>, TokenFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| TokenFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            parse(line).ok_or_else(|| TokenFileError::Line {
                path: path.to_owned(),
                line: number + 1,
            })
        })
        .collect()
}

fn parse(line: &str) -> Option<(String, User)> {
    let fields = fields(line);
    let [token, user, uid, rest @ ..] = fields.as_slice() else {
        return None;
    };
    let groups = rest.first().map(String::as_str).unwrap_or_default();
    let groups = groups.split(',').map(str::trim).filter(|g| !g.is_empty());
    let named = !token.is_empty() && !user.is_empty();
    let mut user = User::new(user, groups);
    user.uid.clone_from(uid);
    named.then(|| (token.clone(), user))
}

/// Splits a CSV line; inside quotes a comma is literal, and two quotes are one.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.trim().chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                push(&mut fields, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => push(&mut fields, other),
        }
    }
    fields
        .into_iter()
        .map(|field| field.trim().to_owned())
        .collect()
}

fn push(fields: &mut [String], character: char) {
    if let Some(field) = fields.last_mut() {
        field.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_quoted_and_optional() {
        let (token, user) = parse("s3cret,jane,42,\"dev, ops\"").unwrap();
        let mut jane = User::new("jane", ["dev", "ops"]);
        jane.uid = "42".to_owned();
        assert_eq!((token.as_str(), user), ("s3cret", jane));
        let (_, user) = parse("t, joe ,7").unwrap();
        assert_eq!(user.groups, User::new("joe", []).groups);
        assert_eq!(fields("\"a\"\"b\",c"), ["a\"b", "c"]);
        for wrong in ["t", "t,joe", ",joe,7", "t,,7"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
