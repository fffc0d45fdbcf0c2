//! Text formats of metrics: `OpenMetrics` 1.0 and Prometheus 0.0.4, chosen by the client.
//!
//! The metrics are encoded as `OpenMetrics`. The older format has the same samples and other
//! comments.

/// Format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/>
    Prometheus,
}

/// Media type of `OpenMetrics`, without parameters.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Media ranges that the older format satisfies.
const PLAIN: [&str; 3] = ["text/plain", "text/*", "*/*"];

/// Suffix of the samples of counters, which is part of their name in the older format only.
const TOTAL: &str = "_total";

impl Exposition {
    /// Returns the format that the header field `Accept` (RFC 9110, section 12.5.1) prefers.
    /// `OpenMetrics` must be named; without a preference the answer is in the older format, which
    /// every client reads.
    pub(crate) fn negotiate(accept: &str) -> Self {
        let weight = |is_wanted: &dyn Fn(&str) -> bool| {
            let ranges = accept.split(',').map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next().unwrap_or_default();
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                (
                    name,
                    quality.map_or(Some(1.0), |text| text.parse::<f32>().ok()),
                )
            });
            ranges
                .filter(|(name, _)| is_wanted(name))
                .filter_map(|(_, quality)| quality)
                .fold(0.0, f32::max)
        };
        let open_metrics = weight(&|name| name.eq_ignore_ascii_case(OPEN_METRICS));
        let plain = weight(&|name| PLAIN.iter().any(|it| name.eq_ignore_ascii_case(it)));
        if open_metrics > 0.0 && open_metrics >= plain {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Returns the media type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns a text of `OpenMetrics` in this format.
    pub(crate) fn of_open_metrics(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => older(&text),
        }
    }
}

/// Names counters as their samples are, and leaves out what the older format does not have.
fn older(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines() {
        let comment = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '));
        match comment {
            Some(("UNIT", _)) => {}
            Some((kind @ ("HELP" | "TYPE"), rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(&name) { TOTAL } else { "" };
                older.extend(["# ", kind, " ", name, suffix, " ", rest, "\n"]);
            }
            _ if line == "# EOF" => {}
            _ => older.extend([line, "\n"]),
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_are_sent_to_clients_that_prefer_them() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            (prometheus, Exposition::OpenMetrics),
            ("application/openmetrics-text", Exposition::OpenMetrics),
            ("", Exposition::Prometheus),
            ("*/*", Exposition::Prometheus),
            ("text/plain, */*;q=0.1", Exposition::Prometheus),
            (
                "application/openmetrics-text;q=0.4, text/plain;q=0.5",
                Exposition::Prometheus,
            ),
            ("application/openmetrics-text;q=0", Exposition::Prometheus),
            ("application/openmetrics-text;q=x", Exposition::Prometheus),
            ("application/json", Exposition::Prometheus),
        ] {
            assert_eq!(Exposition::negotiate(accept), format, "{accept}");
        }
    }

    #[test]
    fn the_older_format_has_the_same_samples_and_whole_names_of_counters() {
        let text = "# HELP viaduct_drops Dropped packets.\n# TYPE viaduct_drops counter\n\
            viaduct_drops_total{reason=\"# TYPE\"} 3\n# HELP viaduct_up Time.\n# TYPE viaduct_up gauge\n\
            # UNIT viaduct_up seconds\nviaduct_up 1\n# EOF\n";
        let older = Exposition::Prometheus.of_open_metrics(text.to_owned());
        assert_eq!(
            older,
            "# HELP viaduct_drops_total Dropped packets.\n# TYPE viaduct_drops_total counter\n\
            viaduct_drops_total{reason=\"# TYPE\"} 3\n# HELP viaduct_up Time.\n# TYPE viaduct_up gauge\n\
            viaduct_up 1\n"
        );
        let same = Exposition::OpenMetrics.of_open_metrics(text.to_owned());
        assert_eq!(same, text);
    }
}
