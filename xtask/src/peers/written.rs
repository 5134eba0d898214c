//! Go programs that are written here on modules of others, such as a controller of the kind people
//! write. Each has a module of its own: what one needs must not change what another, or Kubernetes
//! itself, is built with.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::{Go, module};
use crate::process::Progress;

struct Program {
    name: &'static str,
    main: &'static str,
    go_mod: fn() -> String,
}

const PROGRAMS: [Program; 3] = [
    Program {
        name: "informers",
        main: include_str!("informers.go"),
        go_mod: module::informers_go_mod,
    },
    Program {
        name: "cache",
        main: include_str!("cache.go"),
        go_mod: module::cache_go_mod,
    },
    Program {
        name: "ccm",
        main: include_str!("ccm.go"),
        go_mod: module::ccm_go_mod,
    },
];

/// Builds those that are not there yet.
pub(super) fn build(directory: &Path) -> anyhow::Result<()> {
    let missing: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| !program.is_built(directory))
        .collect();
    let mut progress = Progress::of(missing.len());
    for program in missing {
        progress.step(program.name, || program.build(directory))?;
    }
    Ok(())
}

pub(super) fn are_built(directory: &Path) -> bool {
    PROGRAMS.iter().all(|program| program.is_built(directory))
}

impl Program {
    fn build(&self, directory: &Path) -> anyhow::Result<()> {
        let module = directory.join(self.name);
        fs::create_dir_all(&module).with_context(|| format!("create {}", module.display()))?;
        fs::write(module.join("go.mod"), (self.go_mod)()).context("write go.mod")?;
        fs::write(module.join("main.go"), self.main).context("write main.go")?;
        let go = Go {
            module,
            link_flags: "-s -w".to_owned(),
        };
        go.check_version()?;
        go.build(".", &directory.join("bin").join(self.name))?;
        fs::write(self.stamp(directory), self.recipe()).context("write the stamp")
    }

    fn is_built(&self, directory: &Path) -> bool {
        fs::read_to_string(self.stamp(directory)).is_ok_and(|made| made == self.recipe())
            && directory.join("bin").join(self.name).is_file()
    }

    fn stamp(&self, directory: &Path) -> std::path::PathBuf {
        directory.join(format!("{}-recipe", self.name))
    }

    /// Changes when the result would.
    fn recipe(&self) -> String {
        (self.go_mod)() + self.main
    }
}
