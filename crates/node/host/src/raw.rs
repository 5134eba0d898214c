//! Unsafe system calls without a safe wrapper in our dependencies, each behind a safe function.

#![expect(
    unsafe_code,
    reason = "rustix has no wait4, no getrusage, no mallopt, and no socket option of its users' own"
)]

use std::{
    io,
    mem::MaybeUninit,
    os::{fd::AsRawFd, unix::process::ExitStatusExt as _},
    process::{Child, ExitStatus},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use weft_model::IpFamily;

/// Waits for a child and returns its status and processor time, including that of its own children
/// it waited for.
///
/// Takes the child by value, since its process ID may be reused afterwards.
pub(crate) fn wait(child: Child) -> io::Result<(ExitStatus, Duration)> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // Closes its stdin if that is a pipe: waiting with it open could last forever.
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

/// Subject of a usage query.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    Process,
    Children,
}

/// Processor time used so far.
pub(crate) fn usage(who: Who) -> io::Result<Duration> {
    let who = match who {
        Who::Process => libc::RUSAGE_SELF,
        Who::Children => libc::RUSAGE_CHILDREN,
    };
    let mut usage = MaybeUninit::zeroed();
    // SAFETY: the pointer is valid for the call and of the type that getrusage fills in.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed is a valid `rusage` already, and getrusage succeeded.
    Ok(processor_time(&unsafe { usage.assume_init() }))
}

fn processor_time(usage: &libc::rusage) -> Duration {
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

fn duration(time: libc::timeval) -> Duration {
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
}

/// Makes the allocator map every block of at least this size separately, and stops it from raising
/// that threshold and the trim threshold when such a block is freed. `false` if it refused.
#[cfg(target_env = "gnu")]
pub(crate) fn fix_mapped_size(bytes: libc::c_int) -> bool {
    // SAFETY: no pointers are involved, and glibc locks what it sets.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) == 1 }
}

/// Sets a socket option whose value is a number.
pub(crate) fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes, the size of what the pointer points to.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// One instruction of a filter of a socket.
pub(crate) use libc::sock_filter as FilterInstruction;

/// Has the kernel run this program for each message to a socket, in place of an earlier one, and
/// drop those for which it returns 0.
pub(crate) fn attach_filter(
    socket: &impl AsRawFd,
    program: &mut [FilterInstruction],
) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&filter)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes, the size of what the pointer points to, and copies
    // `len` instructions from the slice, which outlives the call.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `struct ipt_getinfo` of linux/netfilter_ipv4/ip_tables.h; IPv6 has the same.
#[repr(C)]
struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// `IPT_SO_GET_INFO`, and `IP6T_SO_GET_INFO` as well.
const GET_INFO: libc::c_int = 64;

/// Entries and bytes of a legacy table. Creates the table if it does not exist.
pub(crate) fn table_info(family: IpFamily, table: &str) -> io::Result<(u32, u32)> {
    let mut name = [0; 32];
    // The last byte stays 0, the terminator.
    name[..31]
        .get_mut(..table.len())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?
        .copy_from_slice(table.as_bytes());
    let mut info = TableInfo {
        name,
        valid_hooks: 0,
        hook_entry: [0; 5],
        underflow: [0; 5],
        num_entries: 0,
        size: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of::<TableInfo>()).map_err(io::Error::other)?;
    // The option belongs to the family and not to the protocol: any socket of the family will do.
    let (domain, level) = match family {
        IpFamily::V4 => (AddressFamily::INET, libc::IPPROTO_IP),
        IpFamily::V6 => (AddressFamily::INET6, libc::IPPROTO_IPV6),
    };
    let socket = socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the kernel reads the name and writes at most `length` bytes, which is the size of
    // what the pointer points to; all bit patterns are valid in every field.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            GET_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.num_entries, info.size))
}
