// A cache of controller-runtime that answers requests on standard input, one per line, each with
// one line of JSON. `weft-conformance cache-subject` answers the same requests; make conformance
// sends both the same requests and measures them from outside.
//
//	cache          follow all Pods; answers when everything was delivered, with the seconds it took
//	count          Pods in the cache
//	consumers N    add N consumers of Pods
//	events N       wait until N updates of Pods were seen; answers with the time of the last
//	cycle N        N times: add an informer of ConfigMaps, wait until it is synced, remove it
//	controllers N  N times: start a controller of Secrets, wait until each was reconciled, stop it
//	heap           bytes that are live after a garbage collection
//	tasks          goroutines
//	quit
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const limit = 10 * time.Minute

func main() {
	if len(os.Args) == 2 && os.Args[1] == "versions" {
		printVersions()
		return
	}
	ctrl.SetLogger(logr.Discard())
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printVersions says what the program is made of.
func printVersions() {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		switch module.Path {
		case "sigs.k8s.io/controller-runtime", "k8s.io/client-go":
			fmt.Println(module.Path, module.Version)
		}
	}
}

func run(ctx context.Context, arguments []string) error {
	transform := cache.TransformStripManagedFields()
	if len(arguments) == 1 && arguments[0] == "fields" {
		transform = keepFields
	} else if len(arguments) != 0 {
		return fmt.Errorf("usage: cache [fields]")
	}
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return err
	}
	informers, err := cache.New(kubeconfig, cache.Options{DefaultTransform: transform})
	if err != nil {
		return err
	}
	go func() {
		if err := informers.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}()
	// Nothing can be read before it has begun.
	if !informers.WaitForCacheSync(ctx) {
		fmt.Fprintln(os.Stderr, "the cache did not start")
		os.Exit(1)
	}
	subject := &subject{cache: informers}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := subject.handle(ctx, lines.Text())
		if err != nil || answer == nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// keepFields leaves what a node agent reads of a Pod: the same as the projection of the other side.
func keepFields(in any) (any, error) {
	pod, ok := in.(*corev1.Pod)
	if !ok {
		return cache.TransformStripManagedFields()(in)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              pod.Name,
			Namespace:         pod.Namespace,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			Generation:        pod.Generation,
			DeletionTimestamp: pod.DeletionTimestamp,
			Labels:            pod.Labels,
			OwnerReferences:   pod.OwnerReferences,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}, nil
}

type subject struct {
	cache   cache.Cache
	updates atomic.Int64
	// Unix time of the last update in nanoseconds.
	last atomic.Int64
}

type answer map[string]any

func (s *subject) handle(ctx context.Context, request string) (answer, error) {
	word, argument, _ := strings.Cut(request, " ")
	count := 0
	if argument != "" {
		var err error
		if count, err = strconv.Atoi(argument); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	took := func(err error) (answer, error) {
		return answer{"seconds": time.Since(began).Seconds()}, err
	}
	switch word {
	case "cache":
		return took(s.follow(ctx, toolscache.ResourceEventHandlerFuncs{UpdateFunc: s.note}))
	case "consumers":
		for range count {
			if err := s.follow(ctx, toolscache.ResourceEventHandlerFuncs{}); err != nil {
				return nil, err
			}
		}
		return took(nil)
	case "count":
		var pods corev1.PodList
		err := s.cache.List(ctx, &pods, client.UnsafeDisableDeepCopy)
		return answer{"count": len(pods.Items)}, err
	case "events":
		return s.events(int64(count))
	case "cycle":
		for range count {
			if err := s.cycle(ctx); err != nil {
				return nil, err
			}
		}
		return took(nil)
	case "controllers":
		if _, err := s.cache.GetInformer(ctx, &corev1.Secret{}); err != nil {
			return nil, err
		}
		for range count {
			if err := s.controller(ctx); err != nil {
				return nil, err
			}
		}
		return took(nil)
	case "heap":
		runtime.GC()
		runtime.GC()
		var statistics runtime.MemStats
		runtime.ReadMemStats(&statistics)
		return answer{"bytes": statistics.HeapAlloc}, nil
	case "tasks":
		return answer{"tasks": runtime.NumGoroutine()}, nil
	case "quit":
		return nil, nil
	}
	return nil, fmt.Errorf("%q is not a request", request)
}

func (s *subject) note(_, _ any) {
	s.last.Store(time.Now().UnixNano())
	s.updates.Add(1)
}

// follow adds a consumer of Pods and waits until everything was delivered to it.
func (s *subject) follow(ctx context.Context, consumer toolscache.ResourceEventHandler) error {
	return add(ctx, s.cache, &corev1.Pod{}, consumer)
}

func add(ctx context.Context, informers cache.Cache, kind client.Object, consumer toolscache.ResourceEventHandler) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Otherwise it would look every 100 ms whether it is synced, and we wait for the handler anyway.
	informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(consumer)
	if err != nil {
		return err
	}
	if !toolscache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("not synced after %v", limit)
	}
	return nil
}

func (s *subject) events(wanted int64) (answer, error) {
	deadline := time.Now().Add(limit)
	for s.updates.Load() < wanted {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d updates after %v", s.updates.Load(), wanted, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
	last := time.Duration(s.last.Load())
	return answer{"seen": answer{"updates": s.updates.Load(), "last": last.Seconds()}}, nil
}

func (s *subject) cycle(ctx context.Context) error {
	if err := add(ctx, s.cache, &corev1.ConfigMap{}, toolscache.ResourceEventHandlerFuncs{}); err != nil {
		return err
	}
	return s.cache.RemoveInformer(ctx, &corev1.ConfigMap{})
}

// controller runs a controller, in the only way in which one can be made more than once, until it
// has reconciled every Secret.
func (s *subject) controller(ctx context.Context) error {
	var secrets corev1.SecretList
	if err := s.cache.List(ctx, &secrets, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	left := len(secrets.Items)
	all := make(chan struct{})
	reconciler := func(context.Context, reconcile.Request) (reconcile.Result, error) {
		if left--; left == 0 {
			close(all)
		}
		return reconcile.Result{}, nil
	}
	again := true
	cycled, err := controller.NewUnmanaged("cycled", controller.Options{
		Reconciler:         reconcile.Func(reconciler),
		SkipNameValidation: &again,
		Logger:             logr.Discard(),
	})
	if err != nil {
		return err
	}
	secret := source.Kind(s.cache, &corev1.Secret{}, &handler.TypedEnqueueRequestForObject[*corev1.Secret]{})
	if err := cycled.Watch(secret); err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- cycled.Start(ctx) }()
	select {
	case <-all:
	case err := <-ended:
		return fmt.Errorf("the controller ended by itself: %w", err)
	}
	cancel()
	return <-ended
}
