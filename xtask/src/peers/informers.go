// A controller as anyone writes one with controller-runtime: informers of built-in kinds, of
// metadata only and of custom resources, leader election, events, status. The tests of the
// embedded API server run it unchanged against that server.
package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(kubeconfig, ctrl.Options{
		LeaderElection:          true,
		LeaderElectionID:        "informers",
		LeaderElectionNamespace: "default",
		Metrics:                 server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	if err := addServices(manager); err != nil {
		return err
	}
	if err := addWidgets(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// addServices keeps a ConfigMap beside each Service that tells its address, and an Event about it.
func addServices(manager ctrl.Manager) error {
	recorder := manager.GetEventRecorder("informers")
	reconciler := func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		var service corev1.Service
		if err := manager.GetClient().Get(ctx, request.NamespacedName, &service); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		address := corev1.ConfigMap{}
		address.Name, address.Namespace = service.Name, service.Namespace
		outcome, err := controllerutil.CreateOrUpdate(ctx, manager.GetClient(), &address, func() error {
			address.Data = map[string]string{"address": service.Spec.ClusterIP}
			return controllerutil.SetControllerReference(&service, &address, manager.GetScheme())
		})
		if err == nil && outcome != controllerutil.OperationResultNone {
			recorder.Eventf(&service, nil, corev1.EventTypeNormal, "Noted", "Note", "address noted")
		}
		return reconcile.Result{}, err
	}
	return ctrl.NewControllerManagedBy(manager).
		For(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		Complete(reconcile.Func(reconciler))
}

// addWidgets tells in the status of each custom resource which generation was seen.
func addWidgets(manager ctrl.Manager) error {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	reconciler := func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		widget := &unstructured.Unstructured{}
		widget.SetGroupVersionKind(kind)
		if err := manager.GetClient().Get(ctx, request.NamespacedName, widget); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		before := widget.DeepCopy()
		generation := widget.GetGeneration()
		if err := unstructured.SetNestedField(widget.Object, generation, "status", "observed"); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, manager.GetClient().Status().Patch(ctx, widget, client.MergeFrom(before))
	}
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(kind)
	return ctrl.NewControllerManagedBy(manager).
		For(widget).
		Complete(reconcile.Func(reconciler))
}
