//! OCI image archives without Docker: directories become layers, a few JSON documents the rest.
//!
//! The same directories give the same bytes: entries are sorted, times and owners are zero.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::process;

/// An image to be written.
pub(crate) struct Image<'a> {
    /// Full names with tags; an archive may have several for one image.
    pub(crate) names: &'a [&'a str],
    pub(crate) entrypoint: &'a [&'a str],
    pub(crate) command: &'a [&'a str],
    pub(crate) user: Option<&'a str>,
    /// From the lowest to the uppermost.
    pub(crate) layers: &'a [&'a Path],
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Image<'_> {
    /// Writes the archive; returns the digest of the image's manifest.
    pub(crate) fn write(&self, archive: &Path) -> anyhow::Result<String> {
        let work = archive.with_extension("part");
        if work.exists() {
            fs::remove_dir_all(&work)
                .with_context(|| format!("cannot remove {}", work.display()))?;
        }
        let blobs = Blobs(work.join("blobs/sha256"));
        fs::create_dir_all(&blobs.0)
            .with_context(|| format!("cannot create {}", blobs.0.display()))?;
        let layers: Vec<Blob> = self
            .layers
            .iter()
            .map(|layer| blobs.layer(layer))
            .collect::<anyhow::Result<_>>()?;
        let config = blobs.json(&self.config(&layers))?;
        let manifest = blobs.json(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": layers.iter()
                .map(|layer| layer.descriptor("application/vnd.oci.image.layer.v1.tar"))
                .collect::<Vec<_>>(),
        }))?;
        let manifests: Vec<Value> = self
            .names
            .iter()
            .map(|name| named(&manifest, name))
            .collect();
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        write_json(&work.join("index.json"), &index)?;
        write_json(
            &work.join("oci-layout"),
            &json!({"imageLayoutVersion": "1.0.0"}),
        )?;
        // Renamed when it is complete: an archive that exists is whole.
        let unfinished = archive.with_extension("unfinished");
        process::run(&mut tar(&work, &unfinished))?;
        fs::rename(&unfinished, archive)
            .with_context(|| format!("cannot write {}", archive.display()))?;
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
        Ok(manifest.digest)
    }

    fn config(&self, layers: &[Blob]) -> Value {
        let mut config = json!({"Env": [PATH]});
        if !self.entrypoint.is_empty() {
            config["Entrypoint"] = json!(self.entrypoint);
        }
        if !self.command.is_empty() {
            config["Cmd"] = json!(self.command);
        }
        if let Some(user) = self.user {
            config["User"] = json!(user);
        }
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids":
                layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>()},
        })
    }
}

/// The manifest under one of its names, as containerd and Docker find it.
fn named(manifest: &Blob, name: &str) -> Value {
    let mut entry = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    entry["annotations"] = json!({
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag,
    });
    entry
}

/// The field's name for this processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

/// The directory of an archive's content, named by its hash.
struct Blobs(PathBuf);

impl Blobs {
    fn layer(&self, directory: &Path) -> anyhow::Result<Blob> {
        let part = self.0.join("layer.part");
        process::run(&mut tar(directory, &part))?;
        self.keep(&part)
    }

    fn json(&self, value: &Value) -> anyhow::Result<Blob> {
        let part = self.0.join("json.part");
        write_json(&part, value)?;
        self.keep(&part)
    }

    fn keep(&self, part: &Path) -> anyhow::Result<Blob> {
        let (hash, size) = hash(part)?;
        fs::rename(part, self.0.join(&hash))
            .with_context(|| format!("cannot rename {}", part.display()))?;
        Ok(Blob {
            digest: format!("sha256:{hash}"),
            size,
        })
    }
}

fn write_json(file: &Path, value: &Value) -> anyhow::Result<()> {
    fs::write(file, value.to_string()).with_context(|| format!("cannot write {}", file.display()))
}

/// The hash in hexadecimal, and the size.
pub(crate) fn hash(file: &Path) -> anyhow::Result<(String, u64)> {
    let mut input = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let read = input
            .read(&mut buffer)
            .with_context(|| format!("cannot read {}", file.display()))?;
        if read == 0 {
            return Ok((format!("{:x}", hasher.finalize()), size));
        }
        hasher.update(&buffer[..read]);
        size += read as u64;
    }
}

/// Everything of a directory, in an order and with times and owners that do not depend on who packs.
fn tar(directory: &Path, archive: &Path) -> Command {
    let mut command = Command::new("tar");
    command
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0"])
        .args(["--numeric-owner", "--format=gnu"])
        .arg("--directory")
        .arg(directory)
        .arg("--create")
        .arg("--file")
        .arg(archive)
        .arg(".");
    command
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_same_directory_gives_the_same_digest_and_another_one_another() {
        let place = std::env::temp_dir().join(format!("weft-oci-{}", std::process::id()));
        let layer = place.join("layer");
        fs::create_dir_all(&layer).unwrap();
        let digest = |text: &str, seconds| {
            let file = layer.join("program");
            fs::write(&file, text).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
            File::open(&file).unwrap().set_modified(time).unwrap();
            let image = Image {
                names: &["registry.example.com/program:1"],
                entrypoint: &["/program"],
                command: &[],
                user: None,
                layers: &[&layer],
            };
            image.write(&place.join("image.tar")).unwrap()
        };
        let first = digest("one", 100);
        assert_eq!(digest("one", 2_000), first);
        assert_ne!(digest("two", 100), first);
        fs::remove_dir_all(&place).unwrap();
    }
}
