//! From a record of the datapath log to a line of the agent's log.

use abi::{DropHook, DropReason, LoggedVerdict, Tuple};
use kernel::DatapathLogRecord;
use tracing::Level;

use crate::http::names;
use crate::telemetry::log::DATAPATH;
use crate::telemetry::owners::Owner;

/// Fields of a line; what a record does not have is left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields {
    pod: Option<String>,
    container: Option<String>,
    interface: Option<String>,
    hook: Option<&'static str>,
    reason: Option<&'static str>,
    verdict: Option<&'static str>,
    output: Option<String>,
    protocol: Option<String>,
    source: Option<String>,
    destination: Option<String>,
    translated_source: Option<String>,
    translated_destination: Option<String>,
    newcomer_source: Option<String>,
    newcomer_destination: Option<String>,
}

/// Logs a record about the pod `owner`.
pub(super) fn log(record: &DatapathLogRecord, owner: Option<&Owner>) {
    let fields = fields(record, owner);
    // The level of an event is a constant of its call.
    macro_rules! event {
        ($level:expr) => {
            tracing::event!(
                target: DATAPATH,
                $level,
                pod = fields.pod.as_deref(),
                container = fields.container.as_deref(),
                interface = fields.interface.as_deref(),
                hook = fields.hook,
                reason = fields.reason,
                verdict = fields.verdict,
                output = fields.output.as_deref(),
                protocol = fields.protocol.as_deref(),
                source = fields.source.as_deref(),
                destination = fields.destination.as_deref(),
                translated_source = fields.translated_source.as_deref(),
                translated_destination = fields.translated_destination.as_deref(),
                newcomer_source = fields.newcomer_source.as_deref(),
                newcomer_destination = fields.newcomer_destination.as_deref(),
                "{}",
                record.message
            )
        };
    }
    match record.level {
        Level::ERROR => event!(Level::ERROR),
        Level::WARN => event!(Level::WARN),
        Level::INFO => event!(Level::INFO),
        Level::DEBUG => event!(Level::DEBUG),
        Level::TRACE => event!(Level::TRACE),
    }
}

fn fields(record: &DatapathLogRecord, owner: Option<&Owner>) -> Fields {
    let pod = owner.and_then(|owner| owner.pod.as_ref());
    let tuple = record.tuple.as_ref();
    let newcomer = record.newcomer.as_ref();
    // The replies of a translated flow go to other addresses than those of its packets.
    let written = record.reply.map(|reply| reply.reverse());
    let translated = written.as_ref().filter(|written| tuple != Some(*written));
    Fields {
        pod: pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)),
        container: owner.map(|owner| owner.container_id.clone()),
        interface: record.interface.as_ref().map(ToString::to_string),
        hook: record.hook.map(DropHook::name),
        reason: record.reason.map(DropReason::name),
        verdict: record.verdict.map(LoggedVerdict::name),
        output: record.output.as_ref().map(ToString::to_string),
        protocol: tuple
            .or(newcomer)
            .map(|tuple| names::protocol(tuple.protocol)),
        source: tuple.map(source),
        destination: tuple.map(destination),
        translated_source: translated.map(source),
        translated_destination: translated.map(destination),
        newcomer_source: newcomer.map(source),
        newcomer_destination: newcomer.map(destination),
    }
}

fn source(tuple: &Tuple) -> String {
    names::ends(tuple, names::has_ports(tuple.protocol)).source
}

fn destination(tuple: &Tuple) -> String {
    names::ends(tuple, names::has_ports(tuple.protocol)).destination
}

#[cfg(test)]
mod tests {
    use abi::{Address, Port, protocol};
    use api::PodView;

    use super::*;

    fn tuple(source: [u8; 4], port: u16) -> Tuple {
        Tuple {
            source: Address::v4(source),
            destination: Address::v4([192, 0, 2, 80]),
            source_port: Port::new(port),
            destination_port: Port::new(80),
            protocol: protocol::TCP,
            reserved: [0; 3],
        }
    }

    fn record() -> DatapathLogRecord {
        let masqueraded = tuple([192, 0, 2, 10], 50_000);
        DatapathLogRecord {
            level: Level::DEBUG,
            message: "flow opened".to_owned(),
            slot: 3,
            generation: 1,
            interface: Some("eth0".parse().unwrap()),
            hook: None,
            reason: None,
            verdict: None,
            output: None,
            tuple: Some(tuple([10, 244, 1, 2], 40_000)),
            reply: Some(masqueraded.reverse()),
            newcomer: None,
        }
    }

    #[test]
    fn a_new_flow_has_its_pod_and_both_tuples() {
        let owner = Owner {
            pod: Some(PodView {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            }),
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
        };
        let text = |text: &str| Some(text.to_owned());
        let expected = Fields {
            pod: text("default/web"),
            container: text("c1"),
            interface: text("eth0"),
            protocol: text("tcp"),
            source: text("10.244.1.2:40000"),
            destination: text("192.0.2.80:80"),
            translated_source: text("192.0.2.10:50000"),
            translated_destination: text("192.0.2.80:80"),
            ..Fields::default()
        };
        assert_eq!(fields(&record(), Some(&owner)), expected);
    }

    #[test]
    fn an_untranslated_flow_has_one_tuple_and_protocols_without_ports_have_none() {
        let mut record = record();
        let mut tuple = tuple([10, 244, 1, 2], 7);
        tuple.protocol = protocol::ICMP;
        record.tuple = Some(tuple);
        record.reply = Some(tuple.reverse());
        let found = fields(&record, None);
        assert_eq!(found.source.as_deref(), Some("10.244.1.2"));
        assert_eq!(found.destination.as_deref(), Some("192.0.2.80"));
        assert_eq!(found.translated_source, None);
        assert_eq!((found.pod, found.container), (None, None));
    }
}
