//! Subject of a client certificate, read by a minimal DER parser.

use crate::auth::User;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const EXPLICIT_VERSION: u8 = 0xa0;

/// The user of a certificate: the common name is the user, the organisations are the groups.
pub(super) fn user(certificate: &[u8]) -> Option<User> {
    let mut outer = Der(certificate).enter(SEQUENCE)?;
    let mut body = outer.enter(SEQUENCE)?;
    if body.peek()? == EXPLICIT_VERSION {
        body.next()?;
    }
    // serial number, signature algorithm, issuer, validity
    for _ in 0..4 {
        body.next()?;
    }
    let mut subject = body.enter(SEQUENCE)?;
    let (mut common, mut organisations) = (String::new(), Vec::new());
    while let Some(mut set) = subject.enter(SET) {
        while let Some(mut attribute) = set.enter(SEQUENCE) {
            let (tag, kind) = attribute.next()?;
            let (_, value) = attribute.next()?;
            let text = String::from_utf8_lossy(value).into_owned();
            match (tag, kind) {
                (OBJECT_IDENTIFIER, COMMON_NAME) => common = text,
                (OBJECT_IDENTIFIER, ORGANISATION) => organisations.push(text),
                _ => {}
            }
        }
    }
    (!common.is_empty()).then(|| User::new(&common, organisations.iter().map(String::as_str)))
}

/// The unread part of a DER document.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = if first < 0x80 {
            usize::from(first)
        } else {
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            digits.iter().try_fold(0_usize, |sum, digit| {
                sum.checked_mul(256)?.checked_add(usize::from(*digit))
            })?
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }

    /// The content of the next element if it has this tag.
    fn enter(&mut self, tag: u8) -> Option<Der<'a>> {
        if self.peek()? != tag {
            return None;
        }
        self.next().map(|(_, content)| Der(content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tls::Authority;

    #[test]
    fn the_subject_of_a_certificate_is_user_and_groups() {
        let authority = Authority::generate().unwrap();
        let identity = authority.client("alice", "dev").unwrap();
        let der = pem_body(&identity.certificate);
        assert_eq!(user(&der), Some(User::new("alice", ["dev"])));
    }

    #[test]
    fn a_broken_certificate_names_no_user() {
        assert_eq!(user(b""), None);
        assert_eq!(user(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    fn pem_body(pem: &str) -> Vec<u8> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let body: String = pem
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        STANDARD.decode(body).unwrap()
    }
}
