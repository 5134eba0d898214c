//! The system calls for which no crate of ours has a safe wrapper, each behind a safe function.

#![expect(
    unsafe_code,
    reason = "rustix has neither wait4 nor getrusage, since both hand out a C struct"
)]

use std::{
    io,
    mem::MaybeUninit,
    os::unix::process::ExitStatusExt as _,
    process::{Child, ExitStatus},
    time::Duration,
};

/// Waits for a child and says how much processor time it (and what it waited for) used.
///
/// Takes the child, since its number is free for others afterwards.
pub(crate) fn wait(child: Child) -> io::Result<(ExitStatus, Duration)> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // Of these the child's stdin is closed by dropping; waiting with it open could last forever.
    drop(child);
    let mut status = 0;
    let mut usage = MaybeUninit::zeroed();
    loop {
        // SAFETY: both pointers are valid for the call and of the types that wait4 fills in.
        let reaped = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if reaped == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zeroed is a valid `rusage` already, and wait4 succeeded.
    let usage = unsafe { usage.assume_init() };
    Ok((ExitStatus::from_raw(status), processor_time(&usage)))
}

fn processor_time(usage: &libc::rusage) -> Duration {
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

fn duration(time: libc::timeval) -> Duration {
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
}
