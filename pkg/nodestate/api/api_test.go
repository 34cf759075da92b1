// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// The path from the module's root: programs that link two files of one path panic, so it is no short one.
const (
	dir    = "pkg/nodestate/api/"
	source = dir + "endpoints.proto"
)

// TestGenerated: the Go code is what the plugins of go.mod generate from endpoints.proto. UPDATE=1 writes it.
func TestGenerated(t *testing.T) {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{"../../.."}},
		SourceInfoMode: protocompile.SourceInfoStandard, // the comments
	}
	files, err := compiler.Compile(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
	})
	if err != nil {
		t.Fatal(err)
	}
	for plugin, name := range map[string]string{
		"protoc-gen-go":      "endpoints.pb.go",
		"protoc-gen-go-grpc": "endpoints_grpc.pb.go",
	} {
		want := generate(t, plugin, name, request)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(name); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not what %s generates from %s (%v): UPDATE=1 go test ./pkg/nodestate/api", name, plugin, source, err)
		}
	}
}

// generate returns the one file that a plugin makes of a request.
func generate(t *testing.T, plugin, name string, request []byte) []byte {
	t.Helper()
	command := exec.Command("go", "tool", plugin)
	command.Env = append(os.Environ(), "CGO_ENABLED=0") // as other builds: they share the cache
	command.Stdin = bytes.NewReader(request)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go tool %s: %v\n%s", plugin, err, stderr.Bytes())
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		t.Fatalf("go tool %s: %v", plugin, err)
	}
	if response.Error != nil || len(response.File) != 1 || response.File[0].GetName() != dir+name {
		t.Fatalf("go tool %s: want one file %s: %v", plugin, dir+name, &response)
	}
	return []byte(response.File[0].GetContent())
}
