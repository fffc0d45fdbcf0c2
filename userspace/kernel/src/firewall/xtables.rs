//! Finds rules of iptables, ip6tables and ebtables (legacy), by `getsockopt` as those tools do.
//!
//! Only tables that are in use are read: to query another one would create it.

#![expect(
    unsafe_code,
    reason = "no crate that we use wraps these socket options"
)]

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::{fs, io};

use nix::libc;
use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

use crate::firewall::forwarding::has_foreign_entries;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// `EBT_SO_GET_INFO`.
const BRIDGE_INFO: libc::c_int = 128;

/// `NF_INET_FORWARD`.
const FORWARD: usize = 2;

/// Offset of the standard target's verdict from the target (`struct xt_standard_target`).
const VERDICT: usize = 32;
/// The verdict to accept, encoded as `-NF_ACCEPT - 1`.
const ACCEPT: i32 = -2;

/// `struct ipt_getinfo`, which is `struct ip6t_getinfo` as well.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// The beginning of `struct ebt_replace`.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
struct BridgeInfo {
    name: [u8; 32],
    valid_hooks: u32,
    entries: u32,
    entries_size: u32,
    padding: u32,
    hook_entry: [u64; 6],
    num_counters: u32,
    padding2: u32,
    counters: u64,
    entries_at: u64,
}

/// The tables of one address family.
struct Family {
    /// Name of the tool.
    tool: &'static str,
    /// File that lists its tables.
    names: &'static str,
    domain: libc::c_int,
    level: libc::c_int,
    /// Offset of `target_offset` in an entry (`struct ipt_entry`, `struct ip6t_entry`).
    target_at: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        tool: "iptables",
        names: "/proc/thread-self/net/ip_tables_names",
        domain: libc::AF_INET,
        level: libc::IPPROTO_IP,
        target_at: 88,
    },
    Family {
        tool: "ip6tables",
        names: "/proc/thread-self/net/ip6_tables_names",
        domain: libc::AF_INET6,
        level: libc::IPPROTO_IPV6,
        target_at: 140,
    },
];

/// Returns descriptions of the tables that have rules, or a policy other than ACCEPT for forwarded
/// packets.
pub(crate) fn rules() -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for family in &FAMILIES {
        let names = fs::read_to_string(family.names).unwrap_or_default();
        for table in names.lines() {
            if has_rules(family, table)? {
                found.insert(format!("{}: table {table}", family.tool));
            }
        }
    }
    Ok(found)
}

/// A table of one family, as the kernel has it.
pub(crate) struct FilterFile {
    socket: OwnedFd,
    level: libc::c_int,
    info: Info,
    /// `struct ipt_get_entries`, then the entries.
    buffer: Vec<u8>,
}

/// `IPT_SO_SET_REPLACE` and `IPT_SO_SET_ADD_COUNTERS`.
const SET_REPLACE: libc::c_int = 64;
const SET_ADD_COUNTERS: libc::c_int = 65;
/// Size of `struct ipt_get_entries`: the name, the size, and up to the next multiple of eight.
const ENTRIES_HEAD: usize = 40;

/// Returns the tool of a family, and the names of its tables that are in use.
pub(crate) fn tables(ipv4: bool) -> (&'static str, Vec<String>) {
    let family = family(ipv4);
    let names = fs::read_to_string(family.names).unwrap_or_default();
    (family.tool, names.lines().map(str::to_owned).collect())
}

fn family(ipv4: bool) -> &'static Family {
    let [v4, v6] = &FAMILIES;
    if ipv4 { v4 } else { v6 }
}

/// Reads a table of a family; `None` where it is not in use.
pub(crate) fn table(ipv4: bool, table: &str) -> io::Result<Option<FilterFile>> {
    let family = family(ipv4);
    if !tables(ipv4).1.iter().any(|name| name == table) {
        return Ok(None);
    }
    let socket = raw_socket(family.domain)?;
    let mut info = Info::new_zeroed();
    info.name = name(table);
    if !query(&socket, family.level, GET_INFO, info.as_mut_bytes())? {
        return Ok(None);
    }
    let mut buffer = vec![0_u8; ENTRIES_HEAD + info.size as usize];
    buffer[..32].copy_from_slice(&info.name);
    buffer[32..36].copy_from_slice(&info.size.to_ne_bytes());
    // The kernel refuses another size: the table has changed meanwhile.
    if !query(&socket, family.level, GET_ENTRIES, &mut buffer)? {
        return Ok(None);
    }
    Ok(Some(FilterFile {
        socket,
        level: family.level,
        info,
        buffer,
    }))
}

impl FilterFile {
    /// Returns the encoded entries.
    pub(crate) fn entries(&self) -> &[u8] {
        self.buffer.get(ENTRIES_HEAD..).unwrap_or_default()
    }

    /// Returns the offset of each hook's chain, and the bits of the hooks that the table has.
    pub(crate) fn hooks(&self) -> ([u32; 5], u32) {
        (self.info.hook_entry, self.info.valid_hooks)
    }

    /// Replaces all entries, and adds the counters of those that stay: `numbers` are their numbers
    /// in the table that was read.
    pub(crate) fn replace(
        &self,
        entries: &[u8],
        hook_entry: [u32; 5],
        underflow: [u32; 5],
        numbers: &[Option<usize>],
    ) -> io::Result<()> {
        let count = |length: usize| u32::try_from(length).map_err(io::Error::other);
        let before = self.info.num_entries;
        let mut counters = vec![[0_u64; 2]; before as usize];
        // `struct ipt_replace`.
        let mut request = Vec::with_capacity(96 + entries.len());
        request.extend(self.info.name);
        let words = [
            self.info.valid_hooks,
            count(numbers.len())?,
            count(entries.len())?,
        ];
        for word in words
            .into_iter()
            .chain(hook_entry)
            .chain(underflow)
            .chain([before])
        {
            request.extend(word.to_ne_bytes());
        }
        request.extend((counters.as_mut_ptr() as usize).to_ne_bytes());
        request.extend(entries);
        // SAFETY: the only pointer in the request is that of `counters`, which has an element for
        // each of the `before` entries, and lives until the end of the function.
        unsafe { self.set(SET_REPLACE, &request) }?;
        // `struct xt_counters_info`.
        let mut request = Vec::with_capacity(40 + numbers.len() * 16);
        request.extend(self.info.name);
        request.extend(count(numbers.len())?.to_ne_bytes());
        request.extend([0; 4]);
        for number in numbers {
            let counted = number.and_then(|number| counters.get(number));
            for value in counted.copied().unwrap_or_default() {
                request.extend(value.to_ne_bytes());
            }
        }
        // SAFETY: the request contains no pointers.
        unsafe { self.set(SET_ADD_COUNTERS, &request) }
    }

    /// Sets a socket option.
    ///
    /// # Safety
    ///
    /// Each pointer in the request must point to memory that lives until the call returns, and that
    /// the kernel may write as the option does.
    unsafe fn set(&self, option: libc::c_int, request: &[u8]) -> io::Result<()> {
        let length = libc::socklen_t::try_from(request.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel reads `length` bytes; the caller guarantees the rest.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                self.level,
                option,
                request.as_ptr().cast(),
                length,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn has_rules(family: &Family, table: &str) -> io::Result<bool> {
    let socket = raw_socket(family.domain)?;
    let mut info = Info::new_zeroed();
    info.name = name(table);
    if !query(&socket, family.level, GET_INFO, info.as_mut_bytes())? {
        return Ok(false);
    }
    if table == "filter"
        && let Some(foreign) = has_foreign_entries(family.domain == libc::AF_INET)?
    {
        return Ok(foreign);
    }
    // An empty table has one policy for each hook, and the end marker.
    if info.num_entries > info.valid_hooks.count_ones() + 1 {
        return Ok(true);
    }
    if info.valid_hooks & 1 << FORWARD == 0 {
        return Ok(false);
    }
    let policy = policy(family, &socket, table, &info)?;
    Ok(policy != Some(ACCEPT))
}

/// Returns the verdict of the FORWARD chain's policy.
fn policy(family: &Family, socket: &OwnedFd, table: &str, info: &Info) -> io::Result<Option<i32>> {
    /// `struct ipt_get_entries`: the name, the size, and up to the next multiple of eight.
    const HEAD: usize = 40;
    let mut buffer = vec![0_u8; HEAD + info.size as usize];
    buffer[..32].copy_from_slice(&name(table));
    buffer[32..36].copy_from_slice(&info.size.to_ne_bytes());
    if !query(socket, family.level, GET_ENTRIES, &mut buffer)? {
        return Ok(None);
    }
    let entry = HEAD + info.underflow[FORWARD] as usize;
    let field = |at: usize, length: usize| buffer.get(at..at + length);
    let target = field(entry + family.target_at, 2)
        .map(|bytes| usize::from(u16::from_ne_bytes([bytes[0], bytes[1]])));
    let verdict = target.and_then(|target| field(entry + target + VERDICT, 4));
    Ok(verdict.map(|bytes| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}

/// Returns a description of ebtables' rules. ebtables' tables are not listed anywhere. Where they
/// are modules, a loaded one counts as in use. Where they are built in, they can only be queried,
/// which creates an empty table at worst.
pub(crate) fn bridge_tables() -> Option<String> {
    let in_use = match fs::read_to_string("/proc/modules") {
        Ok(modules) => modules.lines().any(|line| line.starts_with("ebtable_")),
        Err(_) => ["filter", "nat", "broute"]
            .into_iter()
            .any(has_bridge_rules),
    };
    in_use.then(|| "ebtables: rules".to_owned())
}

fn has_bridge_rules(table: &str) -> bool {
    let Ok(socket) = raw_socket(libc::AF_INET) else {
        return false;
    };
    let mut info = BridgeInfo::new_zeroed();
    info.name = name(table);
    let known = query(&socket, libc::IPPROTO_IP, BRIDGE_INFO, info.as_mut_bytes());
    known.unwrap_or(false) && info.entries > 0
}

fn name(table: &str) -> [u8; 32] {
    let mut name = [0; 32];
    for (to, from) in name.iter_mut().take(31).zip(table.bytes()) {
        *to = from;
    }
    name
}

fn raw_socket(domain: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(domain, kind, libc::IPPROTO_RAW) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Reads a socket option into `value`, whose beginning names the table; false where the kernel has
/// no such table.
fn query(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<bool> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    let value = value.as_mut_ptr().cast();
    // SAFETY: the kernel reads and writes at most `length` bytes, which is the length of the slice.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut length) };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::NotFound => Ok(false),
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        error => Err(error),
    }
}
