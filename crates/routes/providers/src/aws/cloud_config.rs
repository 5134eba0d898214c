//! The cloud configuration file of AWS.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The fields that are read of cloud-provider-aws's `--cloud-config` file. All others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudConfig {
    /// Values of `RouteTableID`, which may be given several times.
    pub route_tables: Vec<String>,
    /// Value of `KubernetesClusterID`, or of the older `KubernetesClusterTag`.
    pub cluster: Option<String>,
    /// Value of `Region`, or the region of `Zone`.
    pub region: Option<String>,
}

/// The cloud configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CloudConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// A line is neither a section nor a key with a value.
    #[error("line {0} is neither a section nor a key with a value")]
    Line(usize),
}

impl CloudConfig {
    /// Reads and parses the file.
    pub fn read(path: &Path) -> Result<Self, CloudConfigError> {
        let text = fs::read_to_string(path).map_err(|source| CloudConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, CloudConfigError> {
        let mut config = Self::default();
        let mut global = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                global = section.trim().eq_ignore_ascii_case("global");
            } else if let Some((key, value)) = line.split_once('=') {
                if global {
                    config.set(key.trim(), unquoted(value));
                }
            } else if global {
                return Err(CloudConfigError::Line(index + 1));
            }
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let value = value.to_owned();
        match key.to_ascii_lowercase().as_str() {
            "routetableid" => self.route_tables.push(value),
            "kubernetesclusterid" => self.cluster = Some(value),
            "kubernetesclustertag" => self.cluster = self.cluster.take().or(Some(value)),
            "region" => self.region = Some(value),
            "zone" => {
                let region = value.trim_end_matches(|c: char| c.is_ascii_lowercase());
                self.region = self.region.take().or(Some(region.to_owned()));
            }
            _ => {}
        }
    }
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_cloud_provider_aws_are_understood() {
        let text = "\
            ; made by hand\n\
            [Global]\n\
            Zone = eu-central-1a\n\
            KubernetesClusterTag = old\n\
            kubernetesClusterID = \"prod\"\n\
            RouteTableID = rtb-1\n\
            RouteTableID=rtb-2\n\
            ElbSecurityGroup = sg-1\n\
            [ServiceOverride \"1\"]\n\
            Region = nowhere\n";
        let expected = CloudConfig {
            route_tables: vec!["rtb-1".to_owned(), "rtb-2".to_owned()],
            cluster: Some("prod".to_owned()),
            region: Some("eu-central-1".to_owned()),
        };
        assert_eq!(CloudConfig::parse(text).unwrap(), expected);
    }

    #[test]
    fn an_error_names_the_line_that_cannot_be_parsed() {
        let error = CloudConfig::parse("[Global]\nRouteTableID\n").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
