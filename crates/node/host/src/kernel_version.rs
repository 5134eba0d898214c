//! The version of the running kernel.

use std::{fmt, fs, io};

/// Major and minor number of a kernel release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl KernelVersion {
    /// The running kernel's.
    pub fn running() -> io::Result<Self> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Self::parse(&release).ok_or_else(|| {
            let problem = format!("{:?} is not a kernel release", release.trim());
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })
    }

    /// Reads a release as `uname -r` prints it: `5.13.0-40-generic`.
    pub fn parse(release: &str) -> Option<Self> {
        let (major, rest) = release.split_once('.')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: major.parse().ok()?,
            minor: rest[..digits.unwrap_or(rest.len())].parse().ok()?,
        })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        let version = |text| KernelVersion::parse(text).unwrap();
        assert!(version("5.9.0-1-amd64") < version("5.13"));
        assert!(version("5.13.0-40-generic") < version("6.1.0+"));
        assert_eq!(version("6.18-rc1\n").to_string(), "6.18");
        for text in ["", "6", "six.one", "6.", "6.x"] {
            assert_eq!(KernelVersion::parse(text), None, "{text}");
        }
        assert!(KernelVersion::running().unwrap() > version("4.0"));
    }
}
