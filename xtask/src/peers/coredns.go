// CoreDNS with the plugins that a cluster needs. Its own main package compiles all of them in, which
// takes several times as long.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order in which plugins see a query.
	dnsserver.Directives = []string{"ready", "health", "errors", "cache", "loadbalance", "kubernetes", "forward"}
	coremain.Run()
}
