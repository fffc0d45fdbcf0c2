//! The compiled BPF object, loaded for one test: tests fill its maps and run its programs directly.
//!
//! The test has its own mount namespace with a bpffs, and its own network namespace, so nothing is
//! left behind. This module uses the layouts and names of `abi`; it does not define expected
//! results.

use abi::{LONGEST_HELD, maps};
use anyhow::{Context as _, Result, anyhow};
use aya::maps::{Array, HashMap, LpmTrie, MapData, PerCpuArray, lpm_trie};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use e2e::bpf_object;
use kernel::helper_constants;
use model::DatapathLogLevel;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Program return value for a packet that passes: `TCX_NEXT`.
pub(crate) const NEXT: i32 = -1;
/// Program return value for a dropped packet: `TC_ACT_SHOT`.
pub(crate) const SHOT: i32 = 2;
/// Program return value for a redirected packet: `TC_ACT_REDIRECT`. The kernel keeps the target
/// interface in per-CPU state, which a test run does not return.
pub(crate) const REDIRECT: i32 = 7;

/// Size of the `struct __sk_buff` prefix that is passed to the kernel, and the offset of the
/// interface index, in bytes.
const CONTEXT_LEN: usize = 176;
const INTERFACE_AT: usize = 40;

/// Slots of pods: tests have few pods, and some copy all slots for each packet.
const PODS: u32 = 64;

/// The loaded object.
pub(crate) struct Object {
    pub(crate) loaded: Ebpf,
}

impl Object {
    /// Loads the object with a flow table of `entries` entries. The calling thread must be in a
    /// mount namespace with its own bpffs.
    pub(crate) fn load(entries: u32) -> Result<Self> {
        Self::load_with_log(entries, DatapathLogLevel::Off)
    }

    /// As [`Object::load`], with a level of the datapath log.
    pub(crate) fn load_with_log(entries: u32, log: DatapathLogLevel) -> Result<Self> {
        let path = bpf_object();
        let bytes = std::fs::read(&path).with_context(|| {
            format!("no BPF object at {}: run cargo xtask build", path.display())
        })?;
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        let level = log.number();
        let helpers = helper_constants();
        let mut options = EbpfLoader::new();
        for (name, value) in &helpers {
            options.override_global(name, value, true);
        }
        options
            .override_global(aya_log::LEVEL, &level, true)
            .map_max_entries(
                maps::PENDING.name,
                u32::try_from(cpus)? * maps::CACHE_CAPACITY_OF_CPU,
            )
            .map_max_entries(maps::PODS.name, PODS)
            .map_max_entries(maps::LIMITS.name, 2 * PODS)
            .map_max_entries(maps::FLOWS.name, entries)
            .map_max_entries(maps::TURNS.name, entries);
        let loaded = options.load(&bytes)?;
        Ok(Self { loaded })
    }

    /// Runs a program on a packet at an interface. Returns the program's return value and the
    /// resulting packet.
    pub(crate) fn run_on(
        &mut self,
        name: &str,
        interface: u32,
        packet: &[u8],
    ) -> Result<(i32, Vec<u8>)> {
        // A program may write a held fragment over a packet that is shorter.
        let mut out = vec![0; packet.len().max(LONGEST_HELD) + 64];
        let mut context = [0; CONTEXT_LEN];
        context[INTERFACE_AT..INTERFACE_AT + 4].copy_from_slice(&interface.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = program(&mut self.loaded, name)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value.cast_signed(), out))
    }

    /// Sets an element of a hash.
    pub(crate) fn insert<const K: usize, const V: usize>(
        &mut self,
        name: &str,
        key: &(impl IntoBytes + Immutable),
        value: &(impl IntoBytes + Immutable),
    ) -> Result<()> {
        let mut map = HashMap::<&mut MapData, [u8; K], [u8; V]>::try_from(self.map(name)?)?;
        map.insert(array(key), array(value), 0)?;
        self.begin_epoch()
    }

    /// Bumps the cache epoch, as the agent does after every change of a map.
    fn begin_epoch(&mut self) -> Result<()> {
        let mut epochs = Array::<&mut MapData, u64>::try_from(self.map(maps::EPOCHS.name)?)?;
        let last = epochs.get(&maps::EPOCH_OF_TABLES, 0)?;
        Ok(epochs.set(maps::EPOCH_OF_TABLES, last + 1, 0)?)
    }

    /// Removes an element of a hash.
    pub(crate) fn remove<const K: usize, const V: usize>(
        &mut self,
        name: &str,
        key: &(impl IntoBytes + Immutable),
    ) -> Result<()> {
        let mut map = HashMap::<&mut MapData, [u8; K], [u8; V]>::try_from(self.map(name)?)?;
        map.remove(&array(key))?;
        self.begin_epoch()
    }

    /// Reads all elements of a hash.
    pub(crate) fn entries<
        const K: usize,
        const V: usize,
        Key: FromBytes + Ord,
        Value: FromBytes,
    >(
        &mut self,
        name: &str,
    ) -> Result<std::collections::BTreeMap<Key, Value>> {
        let map = HashMap::<&mut MapData, [u8; K], [u8; V]>::try_from(self.map(name)?)?;
        map.iter()
            .map(|entry| {
                let (key, value) = entry?;
                Ok((read(&key)?, read(&value)?))
            })
            .collect()
    }

    /// Sets an element of an array.
    pub(crate) fn set<const V: usize>(
        &mut self,
        name: &str,
        index: u32,
        value: &(impl IntoBytes + Immutable),
    ) -> Result<()> {
        let mut map = Array::<&mut MapData, [u8; V]>::try_from(self.map(name)?)?;
        map.set(index, array::<V>(value), 0)?;
        self.begin_epoch()
    }

    /// Reads an element of an array.
    pub(crate) fn get<const V: usize, Value: FromBytes>(
        &mut self,
        name: &str,
        index: u32,
    ) -> Result<Value> {
        let map = Array::<&mut MapData, [u8; V]>::try_from(self.map(name)?)?;
        read(&map.get(&index, 0)?)
    }

    /// Reads all elements of an array.
    pub(crate) fn list<const V: usize, Value: FromBytes>(
        &mut self,
        name: &str,
    ) -> Result<Vec<Value>> {
        let map = Array::<&mut MapData, [u8; V]>::try_from(self.map(name)?)?;
        map.iter().map(|value| read(&value?)).collect()
    }

    /// Reads an element of a per-CPU array, one value for each CPU.
    pub(crate) fn get_all<const V: usize, Value: FromBytes>(
        &mut self,
        name: &str,
        index: u32,
    ) -> Result<Vec<Value>> {
        let map = PerCpuArray::<&mut MapData, [u8; V]>::try_from(self.map(name)?)?;
        map.get(&index, 0)?
            .iter()
            .map(|value| read(value))
            .collect()
    }

    /// Sets a prefix's class.
    pub(crate) fn insert_prefix(&mut self, prefix: &abi::PrefixKey, class: u32) -> Result<()> {
        let map = self.map(maps::PREFIXES.name)?;
        let mut map = LpmTrie::<&mut MapData, [u8; 16], u32>::try_from(map)?;
        let key = lpm_trie::Key::new(prefix.prefix_len, prefix.address.bytes());
        map.insert(&key, class, 0)?;
        self.begin_epoch()
    }

    fn map(&mut self, name: &str) -> Result<&mut aya::maps::Map> {
        self.loaded
            .map_mut(name)
            .ok_or_else(|| anyhow!("the object has no map {name}"))
    }
}

/// Returns a program of the loaded object. Loads it into the kernel on first use only, because
/// verifying takes most of a test's time.
pub(crate) fn program<'a>(loaded: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier> {
    let program: &mut SchedClassifier = loaded
        .program_mut(name)
        .ok_or_else(|| anyhow!("the object has no program {name}"))?
        .try_into()?;
    if program.fd().is_err() {
        let refused = || format!("the kernel refuses {name}");
        program.load().with_context(refused)?;
    }
    Ok(program)
}

fn array<const N: usize>(value: &(impl IntoBytes + Immutable)) -> [u8; N] {
    value
        .as_bytes()
        .try_into()
        .expect("the caller names the size of the layout")
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T> {
    T::read_from_bytes(bytes).map_err(|_| anyhow!("a value has another size than its layout"))
}
