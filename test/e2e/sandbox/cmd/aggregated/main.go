// SPDX-License-Identifier: Apache-2.0

// Command aggregated is a small aggregated API server with one read-only resource. It is the
// generic API server of Kubernetes, and delegates authentication and authorization to the cluster's
// API server. Each process serves one Replica: itself. So a client of a Service learns which
// endpoint answered.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	metaopenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Replica is a process that serves this API. Its name is the name of its pod.
type Replica struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Node is the name of the node that it runs on.
	Node string `json:"node"`
}

// ReplicaList contains the Replica of the process that answers.
type ReplicaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Replica `json:"items"`
}

// DeepCopyObject implements [runtime.Object].
func (r *Replica) DeepCopyObject() runtime.Object {
	c := *r
	r.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject implements [runtime.Object].
func (l *ReplicaList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Replica, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Replica)
	}
	return &c
}

// replicas is the storage of the resource.
type replicas struct {
	rest.TableConvertor
	self Replica
}

func (*replicas) New() runtime.Object     { return &Replica{} }
func (*replicas) NewList() runtime.Object { return &ReplicaList{} }
func (*replicas) Destroy()                {}
func (*replicas) NamespaceScoped() bool   { return false }
func (*replicas) GetSingularName() string { return "replica" }

func (*replicas) resource() schema.GroupResource {
	return schema.GroupResource{Group: groupVersion().Group, Resource: "replicas"}
}

func (s *replicas) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return &ReplicaList{Items: []Replica{s.self}}, nil
}

func (s *replicas) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != s.self.Name {
		return nil, apierrors.NewNotFound(s.resource(), name)
	}
	return s.self.DeepCopyObject(), nil
}

func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "sandbox.checkplan.dev", Version: "v1alpha1"}
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion(), &Replica{}, &ReplicaList{})
	metav1.AddToGroupVersion(scheme, groupVersion())
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

// OpenAPIModelName is the type's name in OpenAPI.
func (Replica) OpenAPIModelName() string { return "dev.checkplan.sandbox.v1alpha1.Replica" }

// OpenAPIModelName is the type's name in OpenAPI.
func (ReplicaList) OpenAPIModelName() string { return "dev.checkplan.sandbox.v1alpha1.ReplicaList" }

// definitions describes the types of this API, and those that all APIs have.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := metaopenapi.GetOpenAPIDefinitions(ref)
	object := func(metadata string, properties map[string]spec.Schema) common.OpenAPIDefinition {
		properties["apiVersion"] = *spec.StringProperty()
		properties["kind"] = *spec.StringProperty()
		properties["metadata"] = spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(metadata)}}
		return common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Type: []string{"object"}, Properties: properties,
		}}}
	}
	replica := Replica{}.OpenAPIModelName()
	one := object(metav1.ObjectMeta{}.OpenAPIModelName(), map[string]spec.Schema{"node": *spec.StringProperty()})
	one.Dependencies = []string{metav1.ObjectMeta{}.OpenAPIModelName()}
	many := object(metav1.ListMeta{}.OpenAPIModelName(), map[string]spec.Schema{
		"items": *spec.ArrayProperty(&spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(replica)}}),
	})
	many.Dependencies = []string{metav1.ListMeta{}.OpenAPIModelName(), replica}
	all[replica], all[ReplicaList{}.OpenAPIModelName()] = one, many
	return all
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "aggregated: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	serving := options.NewSecureServingOptions().WithLoopback()
	authentication := options.NewDelegatingAuthenticationOptions()
	authorization := options.NewDelegatingAuthorizationOptions()
	flags := pflag.NewFlagSet("aggregated", pflag.ContinueOnError)
	serving.AddFlags(flags)
	authentication.AddFlags(flags)
	authorization.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}

	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.PublicAddress = net.IPv4zero // used only by swagger, which is off
	namer := openapi.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	if err := serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return fmt.Errorf("set up TLS: %w", err)
	}
	if err := authentication.ApplyTo(&config.Authentication, config.SecureServing, config.OpenAPIConfig); err != nil {
		return fmt.Errorf("set up authentication: %w", err)
	}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("set up authorization: %w", err)
	}
	server, err := config.Complete(nil).New("aggregated", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return fmt.Errorf("create the server: %w", err)
	}

	storage := &replicas{self: Replica{
		ObjectMeta: metav1.ObjectMeta{Name: os.Getenv("POD_NAME"), CreationTimestamp: metav1.NewTime(time.Now())},
		Node:       os.Getenv("NODE_NAME"),
	}}
	storage.TableConvertor = rest.NewDefaultTableConvertor(storage.resource())
	group := genericapiserver.NewDefaultAPIGroupInfo(groupVersion().Group, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[groupVersion().Version] = map[string]rest.Storage{"replicas": storage}
	if err := server.InstallAPIGroup(&group); err != nil {
		return fmt.Errorf("install the API: %w", err)
	}
	return server.PrepareRun().RunWithContext(ctx)
}
