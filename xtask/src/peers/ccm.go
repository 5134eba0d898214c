// A cloud-controller-manager for Hetzner Cloud with the one controller that is compared: upstream's
// own route controller, command and flags on a provider that is written here. The provider makes
// the calls that hcloud-cloud-controller-manager makes for routes, with the same client, the same
// time limits and the same caches; it leaves out whatever else that one does.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

const (
	callLimit = 15 * time.Second
	// A list of routes may see servers that were read so long ago.
	listedServersAge = 10 * time.Second
	// And the creation of a route such ones.
	targetServersAge = time.Minute
	scheme           = "hcloud://"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "versions" {
		printVersions()
		return
	}
	settings, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatalf("options: %v", err)
	}
	controllers := map[string]app.ControllerInitFuncConstructor{
		names.NodeRouteController: app.DefaultInitFuncConstructors[names.NodeRouteController],
	}
	aliases := names.CCMControllerAliases()
	command := app.NewCloudControllerManagerCommand(
		settings, provider, controllers, aliases, cliflag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

// printVersions says what the program is made of.
func printVersions() {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		switch module.Path {
		case "k8s.io/cloud-provider", "github.com/hetznercloud/hcloud-go/v2":
			fmt.Println(module.Path, module.Version)
		}
	}
}

func provider(*config.CompletedConfig) cloudprovider.Interface {
	made, err := connect(context.Background())
	if err != nil {
		klog.Fatalf("connect to Hetzner Cloud: %v", err)
	}
	return made
}

// cloud is a provider of routes and of nothing else.
type cloud struct {
	client  *hcloud.Client
	servers *servers
	nodes   corelisters.NodeLister
	// As last read: deletes take the gateway from there.
	network atomic.Pointer[hcloud.Network]
}

func connect(ctx context.Context) (*cloud, error) {
	client := hcloud.NewClient(
		hcloud.WithToken(os.Getenv("HCLOUD_TOKEN")),
		hcloud.WithEndpoint(os.Getenv("HCLOUD_ENDPOINT")),
		hcloud.WithApplication("weft-ccm", ""),
		hcloud.WithHTTPClient(&http.Client{Timeout: callLimit}),
	)
	network, _, err := client.Network.Get(ctx, os.Getenv("HCLOUD_NETWORK"))
	if err != nil {
		return nil, fmt.Errorf("read the network: %w", err)
	}
	if network == nil {
		return nil, errors.New("no such network")
	}
	if _, _, err := client.Location.List(ctx, hcloud.LocationListOpts{}); err != nil {
		return nil, fmt.Errorf("try the token: %w", err)
	}
	made := &cloud{client: client, servers: &servers{client: client}}
	made.network.Store(network)
	return made, nil
}

func (c *cloud) SetInformers(factory informers.SharedInformerFactory) {
	c.nodes = factory.Core().V1().Nodes().Lister()
}

func (c *cloud) Routes() (cloudprovider.Routes, bool) {
	if err := c.reload(context.Background()); err != nil {
		klog.ErrorS(err, "No routes")
		return nil, false
	}
	return c, true
}

func (c *cloud) reload(ctx context.Context) error {
	network, _, err := c.client.Network.GetByID(ctx, c.network.Load().ID)
	if err != nil {
		return fmt.Errorf("read the network: %w", err)
	}
	if network == nil {
		return errors.New("the network is gone")
	}
	c.network.Store(network)
	return nil
}

// ListRoutes names the target of a route by its server; a gateway that no server has is a black hole.
func (c *cloud) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	if err := c.reload(ctx); err != nil {
		return nil, err
	}
	network := c.network.Load()
	names, err := c.servers.byAddress(ctx, network)
	if err != nil {
		return nil, fmt.Errorf("read the servers: %w", err)
	}
	var listed []*cloudprovider.Route
	for _, route := range network.Routes {
		name, known := names[route.Gateway.String()]
		listed = append(listed, &cloudprovider.Route{
			Name:            route.Gateway.String() + "-" + route.Destination.String(),
			DestinationCIDR: route.Destination.String(),
			TargetNode:      types.NodeName(name),
			Blackhole:       !known,
		})
	}
	return listed, nil
}

func (c *cloud) CreateRoute(ctx context.Context, _, _ string, wanted *cloudprovider.Route) error {
	_, destination, err := net.ParseCIDR(wanted.DestinationCIDR)
	if err != nil {
		return err
	}
	if destination.IP.To4() == nil {
		return fmt.Errorf("%s: networks have IPv4 only", destination)
	}
	gateway, err := c.gateway(ctx, string(wanted.TargetNode))
	if err != nil {
		return fmt.Errorf("find the gateway for %s: %w", wanted.TargetNode, err)
	}
	if !isInternal(wanted.TargetNodeAddresses, gateway) {
		return fmt.Errorf("%s is no address of %s", gateway, wanted.TargetNode)
	}
	if err := c.reload(ctx); err != nil {
		return err
	}
	route := hcloud.NetworkRoute{Destination: destination, Gateway: gateway}
	if known := c.routeTo(destination.String()); known != nil {
		if known.Gateway.Equal(gateway) {
			return nil
		}
		if err := c.remove(ctx, *known); err != nil {
			return fmt.Errorf("remove a route that leads elsewhere: %w", err)
		}
	}
	return c.add(ctx, route, string(wanted.TargetNode))
}

// gateway is the address that the node's server has in the network.
func (c *cloud) gateway(ctx context.Context, name string) (net.IP, error) {
	node, err := c.nodes.Get(name)
	if err != nil {
		return nil, err
	}
	server, err := c.server(ctx, node)
	if err != nil {
		return nil, err
	}
	if server == nil {
		return nil, errors.New("no such server")
	}
	attached := server.PrivateNetFor(c.network.Load())
	if attached == nil {
		return nil, errors.New("its server is not in the network")
	}
	return attached.IP, nil
}

func (c *cloud) server(ctx context.Context, node *corev1.Node) (*hcloud.Server, error) {
	if node.Spec.ProviderID == "" {
		return c.servers.find(ctx, func(s *hcloud.Server) bool { return s.Name == node.Name })
	}
	number, ours := strings.CutPrefix(node.Spec.ProviderID, scheme)
	id, err := strconv.ParseInt(number, 10, 64)
	if !ours || err != nil {
		return nil, fmt.Errorf("%q is no cloud server", node.Spec.ProviderID)
	}
	return c.servers.find(ctx, func(s *hcloud.Server) bool { return s.ID == id })
}

func isInternal(addresses []corev1.NodeAddress, gateway net.IP) bool {
	for _, one := range addresses {
		if one.Type == corev1.NodeInternalIP && one.Address == gateway.String() {
			return true
		}
	}
	return false
}

func (c *cloud) routeTo(destination string) *hcloud.NetworkRoute {
	for _, route := range c.network.Load().Routes {
		if route.Destination.String() == destination {
			return &route
		}
	}
	return nil
}

// add answers that the network is busy as a conflict of objects: those are tried again by the
// controller.
func (c *cloud) add(ctx context.Context, route hcloud.NetworkRoute, node string) error {
	opts := hcloud.NetworkAddRouteOpts{Route: route}
	action, _, err := c.client.Network.AddRoute(ctx, c.network.Load(), opts)
	if hcloud.IsError(err, hcloud.ErrorCodeLocked, hcloud.ErrorCodeConflict) {
		return apierrors.NewConflict(corev1.Resource("nodes"), node, err)
	}
	if err != nil {
		return fmt.Errorf("add the route: %w", err)
	}
	return c.client.Action.WaitFor(ctx, action)
}

func (c *cloud) remove(ctx context.Context, route hcloud.NetworkRoute) error {
	opts := hcloud.NetworkDeleteRouteOpts{Route: route}
	action, _, err := c.client.Network.DeleteRoute(ctx, c.network.Load(), opts)
	if err != nil {
		return err
	}
	return c.client.Action.WaitFor(ctx, action)
}

func (c *cloud) DeleteRoute(ctx context.Context, _ string, listed *cloudprovider.Route) error {
	route := c.routeTo(listed.DestinationCIDR)
	if route == nil {
		return fmt.Errorf("there is no route to %s", listed.DestinationCIDR)
	}
	return c.remove(ctx, *route)
}

// servers are all of the project, read again when what is remembered is too old, or lacks the one
// that is asked for.
type servers struct {
	client *hcloud.Client
	mutex  sync.Mutex
	known  []*hcloud.Server
	readAt time.Time
}

func (s *servers) byAddress(ctx context.Context, network *hcloud.Network) (map[string]string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.known) == 0 || time.Since(s.readAt) > listedServersAge {
		if err := s.read(ctx); err != nil {
			return nil, err
		}
	}
	names := make(map[string]string, len(s.known))
	for _, server := range s.known {
		if attached := server.PrivateNetFor(network); attached != nil {
			names[attached.IP.String()] = server.Name
		}
	}
	return names, nil
}

// find returns nil where there is no such server.
func (s *servers) find(ctx context.Context, is func(*hcloud.Server) bool) (*hcloud.Server, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found := s.search(is); found != nil && time.Since(s.readAt) <= targetServersAge {
		return found, nil
	}
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	return s.search(is), nil
}

func (s *servers) search(is func(*hcloud.Server) bool) *hcloud.Server {
	for _, server := range s.known {
		if is(server) {
			return server
		}
	}
	return nil
}

func (s *servers) read(ctx context.Context) error {
	all, err := s.client.Server.All(ctx)
	if err != nil {
		return err
	}
	s.known, s.readAt = all, time.Now()
	return nil
}

func (c *cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return nil, false }
func (c *cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return nil, false }
func (c *cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (c *cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c *cloud) ProviderName() string                                              { return "hcloud" }
func (c *cloud) HasClusterID() bool                                                { return false }
