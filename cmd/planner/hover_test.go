// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	cuetoken "cuelang.org/go/cue/token"

	"github.com/checkplan/checkplan/pkg/ecosystem"
)

// languageServer is a "cue lsp" of the stock cue command, over its standard input and output.
type languageServer struct {
	in  io.WriteCloser
	out *bufio.Reader
	id  int
}

// startLanguageServer starts the server for a directory. It ends with the test.
func startLanguageServer(t *testing.T, dir string) *languageServer {
	t.Helper()
	tool, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Skipf("go tool -n cue: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(tool)), "lsp")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CUE_REGISTRY=none", "CUE_CACHE_DIR="+t.TempDir(), "HOME="+t.TempDir())
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // after its context has ended, by a signal
	s := &languageServer{in: in, out: bufio.NewReader(out)}
	root := "file://" + filepath.ToSlash(dir)
	s.call(t, "initialize", map[string]any{
		"processId": os.Getpid(), "rootUri": root, "capabilities": map[string]any{},
		"workspaceFolders": []any{map[string]any{"uri": root, "name": "plans"}},
	})
	s.send(t, map[string]any{"method": "initialized", "params": map[string]any{}})
	return s
}

func (s *languageServer) send(t *testing.T, message map[string]any) {
	t.Helper()
	message["jsonrpc"] = "2.0"
	b, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(s.in, "Content-Length: %d\r\n\r\n%s", len(b), b); err != nil {
		t.Fatal(err)
	}
}

// call returns the result of a request. Requests of the server are answered with null.
func (s *languageServer) call(t *testing.T, method string, params any) json.RawMessage {
	t.Helper()
	s.id++
	s.send(t, map[string]any{"id": s.id, "method": method, "params": params})
	for {
		head, err := textproto.NewReader(s.out).ReadMIMEHeader()
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		n, err := strconv.Atoi(head.Get("Content-Length"))
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(s.out, body); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		var m struct {
			ID     *int            `json:"id"`
			Method string          `json:"method"`
			Result json.RawMessage `json:"result"`
			Error  any             `json:"error"`
		}
		if err := json.Unmarshal(body, &m); err != nil {
			t.Fatalf("%s: %v: %s", method, err, body)
		}
		switch {
		case m.Method != "" && m.ID != nil:
			s.send(t, map[string]any{"id": *m.ID, "result": nil})
		case m.Method == "" && m.ID != nil && *m.ID == s.id:
			if m.Error != nil {
				t.Fatalf("%s: %v", method, m.Error)
			}
			return m.Result
		}
	}
}

// open opens a file, and returns the hover text at a byte of a line, both from 0; empty if there is none.
func (s *languageServer) open(t *testing.T, path string, text []byte) (hover func(line, character int) string) {
	t.Helper()
	uri := "file://" + filepath.ToSlash(path)
	s.send(t, map[string]any{"method": "textDocument/didOpen", "params": map[string]any{"textDocument": map[string]any{
		"uri": uri, "languageId": "cue", "version": 1, "text": string(text),
	}}})
	return func(line, character int) string {
		var hover struct{ Contents struct{ Value string } }
		result := s.call(t, "textDocument/hover", map[string]any{
			"textDocument": map[string]any{"uri": uri}, "position": map[string]any{"line": line, "character": character},
		})
		if err := json.Unmarshal(result, &hover); err != nil {
			t.Fatalf("%v: %s", err, result)
		}
		return hover.Contents.Value
	}
}

// TestHover: an editor with the stock language server shows what the schema says of each field of the plans that init
// writes, and of the plans of this repository if their checks say schema.#Check, as those of init do.
func TestHover(t *testing.T) {
	dir := t.TempDir()
	env := &environment{stderr: io.Discard, dir: dir}
	if err := env.init("."); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	paths, err := filepath.Glob("../../plans/*.cue")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, filepath.Join(dir, "plans.cue")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(path) != dir {
			text = withCheck(t, path, text)
			path = filepath.Join(dir, filepath.Base(path))
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files[path] = text
	}
	server := startLanguageServer(t, dir)
	fields := 0
	for path, text := range files {
		hover := server.open(t, path, text)
		file, err := parser.ParseFile(path, text)
		if err != nil {
			t.Fatal(err)
		}
		walkFields(t, file, func(f *ast.Field, way []string) {
			if len(way) <= 2 || len(way) == 4 && way[2] == "checks" || way[len(way)-2] == "nodeSelector" {
				return // plan, the name of a plan and that of a check, and labels: they are the user's
			}
			fields++
			if at := f.Label.Pos(); hover(at.Line()-1, at.Column()-1) == "" {
				t.Errorf("%s:%d: no hover text of %s", filepath.Base(path), at.Line(), strings.Join(way, "."))
			}
		})
	}
	if fields < 50 {
		t.Errorf("only %d fields", fields)
	}
	ecosystem.Row(t, "CUE", "`cue lsp`, hover", ecosystem.Version(t, "cuelang.org/go"),
		"each field of the plans of `planner init`, and of `plans/` with `schema.#Check &`", "what the schema says of it")
}

// walkFields calls do for each field of a file, with the names of the fields around it and its own.
func walkFields(t *testing.T, file *ast.File, do func(f *ast.Field, way []string)) {
	t.Helper()
	var way []string
	ast.Walk(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok {
			name, _, err := ast.LabelName(f.Label)
			if err != nil {
				t.Fatal(err)
			}
			way = append(way, name)
			do(f, way)
		}
		return true
	}, func(n ast.Node) {
		if _, ok := n.(*ast.Field); ok {
			way = way[:len(way)-1]
		}
	})
}

// withCheck writes schema.#Check & before each check of a file.
func withCheck(t *testing.T, path string, text []byte) []byte {
	t.Helper()
	file, err := parser.ParseFile(path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var checks []*ast.Field
	walkFields(t, file, func(f *ast.Field, way []string) {
		if len(way) == 4 && way[2] == "checks" {
			checks = append(checks, f)
		}
	})
	for _, f := range checks {
		f.Value = &ast.BinaryExpr{X: ast.NewSel(ast.NewIdent("schema"), "#Check"), Op: cuetoken.AND, Y: f.Value}
	}
	text, err = format.Node(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
