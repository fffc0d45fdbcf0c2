//! Converts names of links to indexes and back, by a socket that stays open.
//!
//! To open and close a socket for each call, as the C library does, takes ten times as long as the
//! call itself.

use std::io;
use std::os::fd::OwnedFd;

use model::IfName;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use steps::LinkRef;

use crate::error::is_gone;

/// Socket for the links of the namespace that it was opened in.
pub(crate) struct Names {
    socket: OwnedFd,
}

impl Names {
    /// Opens the socket in the namespace that the calling thread is in.
    pub(crate) fn open() -> io::Result<Self> {
        let (family, sort) = (AddressFamily::UNIX, SocketType::DGRAM);
        let socket = socket_with(family, sort, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket })
    }

    /// Returns the index of the link with this name; `ENODEV` where there is none.
    pub(crate) fn index(&self, name: &IfName) -> io::Result<u32> {
        Ok(name_to_index(&self.socket, name.as_str())?)
    }

    /// As [`Names::index`]; `None` where there is no such link.
    pub(crate) fn find(&self, name: &IfName) -> io::Result<Option<u32>> {
        match self.index(name) {
            Err(error) if is_gone(&error) => Ok(None),
            found => found.map(Some),
        }
    }

    /// As [`Names::index`]; for a link that is gone, returns its last index.
    pub(crate) fn index_of(&self, link: &LinkRef) -> io::Result<u32> {
        match link {
            LinkRef::Gone(index) => Ok(*index),
            LinkRef::Name(name) => self.index(name),
        }
    }

    /// Returns the link with this index, by name if it exists.
    pub(crate) fn named(&self, index: u32) -> LinkRef {
        let name = index_to_name(&self.socket, index).ok();
        let name = name.and_then(|name| name.parse().ok());
        name.map_or(LinkRef::Gone(index), LinkRef::Name)
    }
}
