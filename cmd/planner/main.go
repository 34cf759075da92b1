// SPDX-License-Identifier: Apache-2.0

// Command planner checks, explains, compiles and runs checkup plans for
// Kubernetes networks.
//
// # Exit codes
//
//	0  the plan is valid; the run passed its gate
//	1  too much was not measured (verdict inconclusive), or the tool or the cluster's API failed
//	2  wrong usage, or an invalid plan
//	3  the network does not do what the plan expects (verdict fail); state --diff: the rules differ
//
// planner diff PLAN exits as kubectl diff does: 0 no difference, 1 differences, 2 an error.
//
// # Output
//
// Results go to standard output. Progress, problems and everything else go to
// standard error: a pipe receives results only. Colour and a moving progress line
// are for terminals only, and NO_COLOR turns colour off. No table is wider than the
// terminal; elsewhere than $COLUMNS, or 80 columns.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(mainCode())
}

func mainCode() int {
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	dir, err := os.Getwd()
	if err != nil {
		dir = "."
	}
	return planner(context.Background(), &environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		dir: dir, getenv: os.Getenv, interrupts: interrupts,
	}, os.Args[1:])
}

// environment is what the verbs use of the process: streams, working directory,
// variables and signals. Only main reads os.Stdout, os.Args and os.Getenv.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// dir is the working directory: paths in messages are relative to it.
	dir    string
	getenv func(string) string
	// interrupts delivers Ctrl-C and SIGTERM.
	interrupts <-chan os.Signal
}

// interruptible returns a context that ends at the first interrupt. The verb run
// handles interrupts itself, because it cancels its PipelineRun.
func (e *environment) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-e.interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
