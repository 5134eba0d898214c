use std::{env, sync::OnceLock};

use crate::lab::program;

/// How the inner process gets to own its namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// We are root already. Preferred, since a user namespace has limits that root does not meet:
    /// `iptables-nft-restore` cannot raise its socket buffer there and fails above some 22 kB.
    Root,
    /// Root inside a user namespace only.
    UserNamespace,
}

/// What the lab itself calls, besides what a test asks for.
const PROGRAMS: [&str; 4] = ["setpriv", "unshare", "mount", "ip"];

impl Privilege {
    /// The best privilege that works here, or why none does.
    pub(crate) fn available(programs: &[&str]) -> Result<Self, String> {
        static PROBED: OnceLock<Result<Privilege, String>> = OnceLock::new();
        for program in PROGRAMS.iter().chain(programs) {
            if !program::exists(program) {
                return Err(format!(
                    "`{program}` is not installed; `cargo xtask setup` tells how"
                ));
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

    fn probe() -> Result<Self, String> {
        let rootless = env::var_os("WEFT_LAB_ROOTLESS").is_some();
        if rustix::process::geteuid().is_root() && !rootless && Self::Root.probe_unshare().is_ok() {
            return Ok(Self::Root);
        }
        // A root without CAP_SYS_ADMIN, as in many containers, is an ordinary user to us.
        Self::UserNamespace
            .probe_unshare()
            .map(|()| Self::UserNamespace)
    }

    fn probe_unshare(self) -> Result<(), String> {
        let mut unshare = program::command("unshare");
        unshare
            .args(self.unshare_flags())
            .args(["--", "mount", "-t", "tmpfs", "tmpfs", "/run"]);
        match unshare.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_in_the_reason() {
        let reason = Privilege::available(&["no-such-program"]).unwrap_err();
        assert!(reason.contains("`no-such-program`"), "{reason}");
    }

    #[test]
    fn the_privilege_survives_the_trip_through_the_environment() {
        for privilege in [Privilege::Root, Privilege::UserNamespace] {
            assert_eq!(Privilege::parse(privilege.as_str()), Some(privilege));
        }
    }
}
