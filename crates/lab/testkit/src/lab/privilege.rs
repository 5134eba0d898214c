//! The privileges with which a lab makes its namespaces.

use std::{env, sync::OnceLock};

use thiserror::Error;

use crate::lab::program;

/// The privilege by which the inner process owns its namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Already root. Preferred, since a user namespace has limits that root does not have:
    /// `iptables-nft-restore` cannot raise its socket buffer there and fails above some 22 kB.
    Root,
    /// Root inside a user namespace only.
    UserNamespace,
}

/// Programs that every lab needs, besides those that a test asks for.
const PROGRAMS: [&str; 4] = ["setpriv", "unshare", "mount", "ip"];

/// No lab can be made on this machine.
#[derive(Debug, Clone, Error)]
pub(crate) enum Unavailable {
    #[error("`{0}` is not installed; `cargo xtask setup` prints how to install it")]
    Missing(String),
    #[error("cannot create namespaces: {0}")]
    Namespaces(String),
}

impl Privilege {
    /// The best privilege that works here.
    pub(crate) fn available(programs: &[&str]) -> Result<Self, Unavailable> {
        static PROBED: OnceLock<Result<Privilege, Unavailable>> = OnceLock::new();
        for program in PROGRAMS.iter().chain(programs) {
            if !program::exists(program) {
                return Err(Unavailable::Missing((*program).to_owned()));
            }
        }
        PROBED.get_or_init(Self::probe).clone()
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Root, Self::UserNamespace]
            .into_iter()
            .find(|privilege| privilege.as_str() == text)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::UserNamespace => "user-namespace",
        }
    }

    /// The flags of `unshare` that make the namespaces.
    ///
    /// A process namespace is among them because its end is the end of every process in it.
    pub(crate) fn unshare_flags(self) -> &'static [&'static str] {
        const NAMESPACES: [&str; 7] = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--user",
            "--map-root-user",
        ];
        match self {
            Self::Root => &NAMESPACES[..5],
            Self::UserNamespace => &NAMESPACES,
        }
    }

    pub(crate) fn nsenter_flags(self) -> &'static str {
        match self {
            Self::Root => "--net --mount",
            Self::UserNamespace => "--user --preserve-credentials --net --mount",
        }
    }

    fn probe() -> Result<Self, Unavailable> {
        let rootless = env::var_os("WEFT_LAB_ROOTLESS").is_some();
        if rustix::process::geteuid().is_root() && !rootless && Self::Root.probe_unshare().is_ok() {
            return Ok(Self::Root);
        }
        // Root without CAP_SYS_ADMIN, as in many containers, needs a user namespace too.
        Self::UserNamespace
            .probe_unshare()
            .map(|()| Self::UserNamespace)
    }

    fn probe_unshare(self) -> Result<(), Unavailable> {
        let mut unshare = program::command("unshare");
        unshare
            .args(self.unshare_flags())
            .args(["--", "mount", "-t", "tmpfs", "tmpfs", "/run"]);
        match unshare.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                Err(Unavailable::Namespaces(stderr.trim().to_owned()))
            }
            Err(error) => Err(Unavailable::Namespaces(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_in_the_reason() {
        let reason = Privilege::available(&["no-such-program"]).unwrap_err();
        let reason = reason.to_string();
        assert!(reason.contains("`no-such-program`"), "{reason}");
    }

    #[test]
    fn a_privilege_parsed_from_its_text_is_the_same() {
        for privilege in [Privilege::Root, Privilege::UserNamespace] {
            assert_eq!(Privilege::parse(privilege.as_str()), Some(privilege));
        }
    }
}
