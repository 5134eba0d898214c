//! Files that must be regular files.
//!
//! A FIFO opened without care waits for its other end for ever, and a symbolic link leads to a file
//! of another owner.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a file as these options say. What is not a regular file is an error of kind
/// [`io::ErrorKind::InvalidData`]: it never blocks, and is not followed if it is a link.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file");
    let opened = options
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK))
        .open(path);
    let file = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        // A link; a socket, or a FIFO without reader; a directory to be written.
        Some(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO | rustix::io::Errno::ISDIR) => odd(),
        _ => error,
    })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(odd())
    }
}

/// Opens a directory, and nothing else.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags(OFlags::DIRECTORY));
    options.open(path)
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}
