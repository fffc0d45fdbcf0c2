//! Output formats of answers: tables for people, JSON and YAML for programs.

use anyhow::Result;
use api::Reply;
use clap::ValueEnum;
use model::printable_json;
use serde_json::Value;

use crate::render::TableStyle;

/// Options of verbs that print an answer of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    format: Format,
    /// Same as `--output json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Leave out the header of the table
    #[arg(long)]
    no_headers: bool,
}

/// Format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For terminals and `grep`: one line per object
    #[default]
    Table,
    /// As table, with more columns where there are some
    Wide,
    /// The agent's JSON, with all fields
    Json,
    /// The agent's JSON as YAML
    Yaml,
}

/// Format for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataFormat {
    Json,
    Yaml,
}

impl Output {
    /// Returns the format for programs; `None` for a table.
    pub(crate) fn data(self) -> Option<DataFormat> {
        match self.format {
            _ if self.json => Some(DataFormat::Json),
            Format::Json => Some(DataFormat::Json),
            Format::Yaml => Some(DataFormat::Yaml),
            Format::Table | Format::Wide => None,
        }
    }

    /// Returns how tables are printed.
    pub(crate) fn style(self) -> TableStyle {
        TableStyle {
            headers: !self.no_headers,
            wide: self.format == Format::Wide,
        }
    }
}

impl DataFormat {
    /// Returns the agent's answer as text. Fields that this version does not know are kept.
    pub(crate) fn reply(self, reply: &Reply) -> Result<String> {
        self.text(&reply.decode()?)
    }

    /// Returns a value as text, with control characters escaped.
    pub(crate) fn text(self, value: &Value) -> Result<String> {
        let text = match self {
            Self::Json => {
                let text = serde_json::to_string_pretty(value)? + "\n";
                return Ok(printable_json(&text).into_owned());
            }
            Self::Yaml => serde_saphyr::to_string(&crate::escaped(value.clone()))?,
        };
        Ok(text.trim_end().to_owned() + "\n")
    }

    /// Returns one value of a stream: a line of JSON, or a document of YAML.
    pub(crate) fn line(self, line: &str) -> Result<String> {
        match self {
            Self::Json => Ok(format!("{}\n", printable_json(line))),
            Self::Yaml => Ok(format!("---\n{}", self.text(&serde_json::from_str(line)?)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        json!({ "name": "10", "on": true, "list": [1, { "a": null }], "hostile": "a\u{1b}[2J\nb" })
    }

    #[test]
    fn yaml_has_the_same_values_as_json_without_control_characters() {
        let text = DataFormat::Yaml.text(&answer()).unwrap();
        insta::assert_snapshot!(text);
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn each_value_of_a_stream_is_a_line_of_json_or_a_document_of_yaml() {
        let line = "{\"a\":1}";
        assert_eq!(DataFormat::Json.line(line).unwrap(), "{\"a\":1}\n");
        assert_eq!(DataFormat::Yaml.line(line).unwrap(), "---\na: 1\n");
    }

    #[test]
    fn the_option_json_is_the_output_format_json() {
        let json = Output {
            json: true,
            ..Output::default()
        };
        assert_eq!(json.data(), Some(DataFormat::Json));
        assert_eq!(Output::default().data(), None);
        let wide = Output {
            format: Format::Wide,
            ..Output::default()
        };
        assert_eq!(wide.data(), None);
        assert!(wide.style().wide && wide.style().headers);
    }
}
