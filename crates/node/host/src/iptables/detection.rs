//! Detection of the iptables variant that the node uses.

use std::path::Path;

use thiserror::Error;
use weft_model::IpFamily;

use crate::{
    command::{CommandError, Invocation},
    iptables::{
        Iptables, Limits, Programs, SearchPath, Variant,
        programs::{environment, explicit_name, plain_name},
        version::Banner,
    },
    netfilter::legacy_table_exists,
};

/// Chains that the kubelet creates in the mangle table of the variant it uses, as a hint for other
/// components.
const KUBELET_CHAINS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// Configured variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VariantChoice {
    /// The kubelet's variant, or else the one behind the plain name `iptables`.
    #[default]
    Auto,
    /// The `iptables-legacy` programs.
    Legacy,
    /// The `iptables-nft` programs.
    Nft,
}

/// Failure to find the programs.
#[derive(Debug, Error)]
pub enum DetectError {
    /// The program has neither its explicit nor its plain name in the search path.
    #[error("`{0}` is not installed")]
    Missing(String),
    /// Only the plain name exists, and it is the other variant.
    #[error("`{explicit}` is not installed, and `{plain}` is the {found} variant")]
    OtherVariant {
        /// The name with the variant.
        explicit: String,
        /// The name without the variant.
        plain: String,
        /// The variant behind the plain name.
        found: Variant,
    },
    /// The program does not run.
    #[error("cannot read the version of iptables")]
    NoVersion(#[source] CommandError),
    /// The output of `--version` is not understood.
    #[error("`{program} --version` printed {output:?}: expected a version")]
    BadVersion {
        /// Path of the program.
        program: String,
        /// Its output.
        output: String,
    },
}

impl Iptables {
    /// Finds the programs of a family.
    pub fn detect(family: IpFamily, choice: VariantChoice) -> Result<Self, DetectError> {
        Self::detect_in(&SearchPath::from_environment(), family, choice)
    }

    /// [`Self::detect`] in another search path.
    pub fn detect_in(
        search: &SearchPath,
        family: IpFamily,
        choice: VariantChoice,
    ) -> Result<Self, DetectError> {
        match choice {
            VariantChoice::Legacy => Self::open(search, family, Variant::Legacy),
            VariantChoice::Nft => Self::open(search, family, Variant::Nft),
            VariantChoice::Auto => Self::open_automatic(search, family),
        }
    }

    fn open_automatic(search: &SearchPath, family: IpFamily) -> Result<Self, DetectError> {
        // The kubelet of a single-stack node creates its chains in one family only.
        let marked = [Variant::Nft, Variant::Legacy].into_iter().find(|variant| {
            IpFamily::ALL.into_iter().any(|family| {
                Self::open(search, family, *variant).is_ok_and(|tables| tables.has_kubelet_chain())
            })
        });
        if let Some(variant) = marked {
            return Self::open(search, family, variant);
        }
        match Self::open_named(search, family, plain_name(family)) {
            Ok(plain) => Self::open(search, family, plain.variant).or(Ok(plain)),
            Err(missing @ DetectError::Missing(_)) => Self::open(search, family, Variant::Nft)
                .or_else(|_| Self::open(search, family, Variant::Legacy))
                .map_err(|_| missing),
            Err(error) => Err(error),
        }
    }

    /// Opens one variant, by its explicit name, or by the plain one if that is the variant.
    fn open(search: &SearchPath, family: IpFamily, variant: Variant) -> Result<Self, DetectError> {
        let explicit = explicit_name(family, variant);
        let missing = match Self::open_named(search, family, &explicit) {
            Err(error @ DetectError::Missing(_)) => error,
            found => return found,
        };
        match Self::open_named(search, family, plain_name(family)) {
            Ok(plain) if plain.variant == variant => Ok(plain),
            Ok(plain) => Err(DetectError::OtherVariant {
                explicit,
                plain: plain_name(family).to_owned(),
                found: plain.variant,
            }),
            Err(DetectError::Missing(_)) => Err(missing),
            Err(error) => Err(error),
        }
    }

    fn open_named(search: &SearchPath, family: IpFamily, stem: &str) -> Result<Self, DetectError> {
        let programs = Programs::find(search, stem)?;
        let limits = Limits::default();
        let Banner { version, variant } = banner(&programs.command, limits)?;
        Ok(Self {
            family,
            variant,
            version,
            programs,
            limits,
        })
    }

    /// Returns whether the kubelet's chains exist. A table that cannot be read has none.
    fn has_kubelet_chain(&self) -> bool {
        if self.variant == Variant::Legacy && !legacy_table_exists(self.family, "mangle") {
            return false;
        }
        let mut found = false;
        let saved = self.save_lines(Some("mangle"), &mut |line| {
            found |= declared_chain(line).is_some_and(|chain| KUBELET_CHAINS.contains(&chain));
        });
        if let Err(error) = saved {
            tracing::debug!(%error, "cannot read the mangle table, assuming no kubelet chains");
            return false;
        }
        found
    }
}

fn banner(program: &Path, limits: Limits) -> Result<Banner, DetectError> {
    let finished = Invocation {
        program,
        arguments: &["--version"],
        environment: &environment(),
        input: b"",
        limit: limits.program,
    }
    .run()
    .map_err(DetectError::NoVersion)?;
    let output = String::from_utf8_lossy(&finished.output);
    output.parse().map_err(|()| DetectError::BadVersion {
        program: program.display().to_string(),
        output: output.trim().to_owned(),
    })
}

/// The name in a line like `:KUBE-IPTABLES-HINT - [0:0]`.
fn declared_chain(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next()
}
