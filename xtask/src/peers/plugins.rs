//! The CNI project's plugins, under which the address plugin of ours is tried out.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::{Go, module};
use crate::process::Progress;

/// They keep the names that a configuration calls them by, in a directory of their own: `bridge`
/// is a program of iproute2 as well.
const PLUGINS: [(&str, &str); 5] = [
    ("bridge", "main/bridge"),
    ("loopback", "main/loopback"),
    ("ptp", "main/ptp"),
    ("portmap", "meta/portmap"),
    ("host-local", "ipam/host-local"),
];

pub(super) fn build(directory: &Path) -> anyhow::Result<()> {
    let home = directory.join("plugins");
    fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
    fs::write(home.join("go.mod"), module::plugins_go_mod()).context("write go.mod")?;
    let go = Go {
        module: home,
        link_flags: "-s -w".to_owned(),
    };
    go.check_version()?;
    eprintln!("building the CNI plugins {}", module::PLUGINS);
    let mut progress = Progress::of(PLUGINS.len());
    let programs = directory.join("bin/cni");
    for (name, package) in PLUGINS {
        let package = format!("github.com/containernetworking/plugins/plugins/{package}");
        progress.step(name, || go.build(&package, &programs.join(name)))?;
    }
    fs::write(stamp(directory), module::plugins_go_mod()).context("write the stamp")?;
    progress.finish(&format!("plugins are in {}, built", programs.display()));
    Ok(())
}

pub(super) fn are_built(directory: &Path) -> bool {
    fs::read_to_string(stamp(directory)).is_ok_and(|made| made == module::plugins_go_mod())
        && PLUGINS
            .iter()
            .all(|(name, _)| directory.join("bin/cni").join(name).is_file())
}

fn stamp(directory: &Path) -> std::path::PathBuf {
    directory.join("plugins-recipe")
}
