//! Opens files that must be regular files.
//!
//! Opening a FIFO can block for ever, and a symbolic link may lead to a file of another owner.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a file with these options. Anything but a regular file is an error of kind
/// [`io::ErrorKind::InvalidData`]: the call never blocks and follows no link.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file");
    let opened = options
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK))
        .open(path);
    let file = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        // A link; a socket or a FIFO without a reader; a directory opened for writing.
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
