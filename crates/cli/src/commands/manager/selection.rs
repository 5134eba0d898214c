//! Selection of controllers by `--controllers`, and of the parts of a node.

use weft_program::config::ConfigError;

/// The controllers that a command has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Catalogue {
    /// Their names, with upstream's other names for them.
    known: &'static [(&'static str, &'static [&'static str])],
    /// The controllers that `*` does not enable: a cluster may have another one of the same kind.
    by_name: &'static [&'static str],
}

/// Of a cluster.
const CLUSTER: Catalogue = Catalogue {
    known: &[
        ("route", &["node-route-controller"]),
        ("ipam", &[]),
        ("pod-cidr", &["node-ipam-controller", "nodeipam"]),
    ],
    by_name: &["ipam", "pod-cidr"],
};

/// Of a node.
const NODE: Catalogue = Catalogue {
    known: &[("proxy", &[]), ("ipam", &[]), ("routes", &["route"])],
    by_name: &[],
};

/// The controllers to run: `*`, `name`, `-name`; the first match decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    rules: Vec<(bool, Option<&'static str>)>,
    catalogue: &'static Catalogue,
}

impl Selection {
    /// Of the controllers of a cluster.
    pub(crate) fn parse(words: &[String]) -> Result<Self, ConfigError> {
        Self::of(&CLUSTER, words)
    }

    /// Of the parts of a node.
    pub(crate) fn of_node(words: &[String]) -> Result<Self, ConfigError> {
        Self::of(&NODE, words)
    }

    fn of(catalogue: &'static Catalogue, words: &[String]) -> Result<Self, ConfigError> {
        let mut rules = Vec::new();
        for word in words {
            let (on, name) = match word.strip_prefix('-') {
                Some(name) => (false, name),
                None => (true, word.as_str()),
            };
            let name = if name == "*" {
                None
            } else {
                Some(catalogue.find(name)?)
            };
            rules.push((on, name));
        }
        Ok(Self { rules, catalogue })
    }

    /// Of a manager that has controllers that we do not know.
    pub(crate) fn of_others(words: &[String]) -> Self {
        let is_known = |word: &&String| {
            let name = word.strip_prefix('-').unwrap_or(word);
            name == "*" || CLUSTER.find(name).is_ok()
        };
        let ours: Vec<String> = words.iter().filter(is_known).cloned().collect();
        Self::parse(&ours).unwrap_or(Self {
            rules: Vec::new(),
            catalogue: &CLUSTER,
        })
    }

    /// True if a controller besides routes runs.
    pub(crate) fn includes_others(&self, controller: &str) -> bool {
        let known = self.catalogue.known.iter();
        let mut others = known.filter(|(name, _)| *name != controller);
        others.any(|(name, _)| self.includes(name))
    }

    pub(crate) fn includes(&self, controller: &str) -> bool {
        let by_name = self
            .rules
            .iter()
            .find(|(_, name)| *name == Some(controller));
        let means_star = !self.catalogue.by_name.contains(&controller);
        let mut stars = self.rules.iter();
        let by_star = stars.find(|(_, name)| name.is_none() && means_star);
        by_name.or(by_star).is_some_and(|(on, _)| *on)
    }
}

impl Catalogue {
    fn find(&self, name: &str) -> Result<&'static str, ConfigError> {
        let found = self
            .known
            .iter()
            .find(|(own, others)| *own == name || others.contains(&name));
        found.map(|(own, _)| *own).ok_or_else(|| {
            let names: Vec<&str> = self.known.iter().map(|(own, _)| *own).collect();
            ConfigError::Flag(format!(
                "--controllers: there is no {name:?}; there are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(words: &str) -> bool {
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        Selection::parse(&words).unwrap().includes("route")
    }

    #[test]
    fn a_name_decides_before_the_star_wherever_it_stands() {
        assert!(includes("*"));
        assert!(!includes("*,-route"));
        assert!(!includes("-node-route-controller,*"));
        assert!(includes("route"));
        assert!(!includes("-*"));
    }

    #[test]
    fn names_of_other_managers_are_passed_over() {
        let words = ["*", "-route", "-service"].map(str::to_owned);
        assert!(!Selection::of_others(&words).includes("route"));
        let words = ["-service", "*"].map(str::to_owned);
        assert!(Selection::of_others(&words).includes("route"));
    }

    #[test]
    fn controllers_of_addresses_run_only_if_they_are_named() {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let star = Selection::parse(&words("*")).unwrap();
        assert!(!star.includes("ipam") && !star.includes("pod-cidr"));
        let named = Selection::parse(&words("*,ipam,nodeipam")).unwrap();
        assert!(named.includes("ipam") && named.includes("pod-cidr") && named.includes("route"));
    }

    #[test]
    fn a_node_has_parts_of_its_own() {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let node = Selection::of_node(&words("*,-routes")).unwrap();
        assert!(node.includes("proxy") && node.includes("ipam") && !node.includes("routes"));
        assert!(Selection::of_node(&words("pod-cidr")).is_err());
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Selection::parse(&["rout".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("there are route"), "{error}");
    }
}
