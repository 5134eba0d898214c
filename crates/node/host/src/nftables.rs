//! Deletion of nftables tables that another mode of kube-proxy left behind.

use std::{io, process::Command};

use weft_model::IpFamily;

/// Deletes a whole table. `false` if it does not exist, or `nft` is not installed.
pub fn delete_table(family: IpFamily, name: &str) -> io::Result<bool> {
    let family = match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    };
    let run = |verb: &[&str]| {
        let mut command = Command::new("nft");
        command.args(verb).args(["table", family, name]).output()
    };
    // Only a list distinguishes a missing table from one that cannot be deleted.
    match run(&["list"]) {
        Ok(output) if output.status.success() => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let output = run(&["delete"])?;
    if output.status.success() {
        return Ok(true);
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!(
        "cannot delete nftables table {family} {name}: {message}"
    )))
}
