//! Node-wide settings of the datapath.

use std::io;

use abi::maps;
use aya::Ebpf;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, List, Wire, take, written};
use crate::bpf::table::{Table, mismatch};
use crate::error::{Attempt as _, OpenError, io_error};
use crate::netlink::ifindex::Names;
use crate::syscall;

/// Only index of the settings array.
const ONLY: u32 = 0;

/// Contents of an array before the first write: zeros, which are not [`abi::Settings::default`].
const NO_SETTINGS: abi::Settings = zerocopy::transmute!([0_u8; size_of::<abi::Settings>()]);

/// The settings table.
pub(crate) struct Settings {
    map: List<abi::Settings>,
    /// Cookie of the node's network namespace (`SO_NETNS_COOKIE`), which the planner does not have.
    netns_cookie: u64,
}

impl Table for Settings {
    /// Takes the table for the network namespace of the calling thread.
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        let netns_cookie = syscall::netns_cookie()
            .attempt(|| "read the cookie of the network namespace".to_owned())?;
        Ok(Self {
            map: take(object, &maps::SETTINGS)?,
            netns_cookie,
        })
    }

    fn put(&mut self, _: &Names, _: &EntryKey, entry: &Entry) -> io::Result<()> {
        let Entry::Settings(settings) = entry else {
            return Err(mismatch());
        };
        let settings = abi::Settings {
            netns_cookie: self.netns_cookie,
            ..*settings
        };
        written(self.map.set(ONLY, Wire(settings), ANY))
    }

    fn remove(&mut self, _: &Names, _: &EntryKey) -> io::Result<()> {
        written(self.map.set(ONLY, Wire(NO_SETTINGS), ANY))
    }

    fn find(&self, _: &Names, _: &EntryKey) -> io::Result<Option<Entry>> {
        self.read()
    }

    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let entry = self.read()?.into_iter();
        Ok(entry.map(|entry| (EntryKey::Settings, entry)).collect())
    }
}

impl Settings {
    fn read(&self) -> io::Result<Option<Entry>> {
        let Wire(mut settings) = self.map.get(&ONLY, ANY).map_err(|error| io_error(&error))?;
        if settings == NO_SETTINGS {
            return Ok(None);
        }
        // The planner's settings have no cookie. Settings with another namespace's cookie differ
        // from them and are written again.
        if settings.netns_cookie == self.netns_cookie {
            settings.netns_cookie = 0;
        }
        Ok(Some(Entry::Settings(settings)))
    }
}
