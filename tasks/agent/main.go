// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/detect"
	"github.com/checkplan/checkplan/pkg/probe"
)

// memoryLimit is the default of GOMEMLIMIT: it keeps the agent below the limit of its pod, 64Mi.
const memoryLimit = 48 << 20

func main() {
	if isInit() {
		guest()
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	var usage usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "agent: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "agent: %v\n", err)
		os.Exit(1)
	}
}

// usageError is the error of a wrong command line.
type usageError string

func (e usageError) Error() string { return string(e) }

const usage = usageError(
	"usage: agent probe --order FILE | agent probe --order-env NAME | agent respond [--echo ADDRESS] [--http ADDRESS] [--health ADDRESS] [--linger DURATION] | agent version",
)

func run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	switch args[0] {
	case "probe":
		order := flags.String("order", "", "`FILE` with the order, as JSON")
		variable := flags.String("order-env", "", "`NAME` of the environment variable with the order, as JSON")
		if err := parse(flags, args[1:]); err != nil {
			return err
		}
		if (*order == "") == (*variable == "") {
			return usageError("probe: want one of --order FILE and --order-env NAME")
		}
		read := func() (checkup.Order, error) { return probe.ReadOrderFile(*order) }
		if *variable != "" {
			read = func() (checkup.Order, error) { return probe.ReadOrderText(*variable, os.Getenv(*variable)) }
		}
		return runProbe(ctx, stdout, stderr, read)
	case "respond":
		echo := flags.String("echo", fmt.Sprintf(":%d", probe.EchoPort), "`ADDRESS` for TCP and UDP echo")
		http := flags.String("http", fmt.Sprintf(":%d", probe.HTTPPort), "`ADDRESS` for HTTP")
		health := flags.String("health", fmt.Sprintf(":%d", probe.HealthPort), "`ADDRESS` for the kubelet's health checks")
		linger := flags.Duration("linger", 0, "`DURATION` for which it goes on answering after a signal to end")
		if err := parse(flags, args[1:]); err != nil {
			return err
		}
		lingering, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(*linger, end) })()
		return respond(lingering, stdout, *echo, *http, *health)
	case "version":
		_, err := fmt.Fprintln(stdout, version())
		return err
	}
	return usage
}

func parse(flags *flag.FlagSet, args []string) error {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return usageError(fmt.Sprintf("%s: %v", flags.Name(), err))
	}
	if flags.NArg() > 0 {
		return usageError(fmt.Sprintf("%s: unexpected argument %q", flags.Name(), flags.Arg(0)))
	}
	return nil
}

// lastWords is how long an agent may take after its order's deadline to report and to end. Nobody deletes the container
// of an agent in an existing pod.
const lastWords = time.Minute

func runProbe(ctx context.Context, stdout, stderr io.Writer, read func() (checkup.Order, error)) error {
	order, err := read()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(order.Deadline)+lastWords)
	defer cancel()
	if order.Tables != nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(math.MaxInt64) // rules take what they take, and the pod has the limits of its plan
	}
	err = probe.Agent{Order: order, Version: version(), Out: stdout, Table: table}.Run(ctx)
	if err == nil && ctx.Err() != nil {
		fmt.Fprintln(stderr, "agent: stopped before the end")
	}
	return err
}

// table writes what the node's service proxy has programmed in one family, or says why it cannot be read.
func table(family checkup.IPFamily, w io.Writer) *checkup.Cause {
	proxy, have, err := detect.Read(dataplane.Family(family))
	if err == nil {
		err = dataplane.Look{Proxy: proxy, Table: have}.Write(w)
	}
	switch {
	case errors.Is(err, detect.ErrForbidden):
		return &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonForbidden, Message: err.Error()}
	case err != nil:
		return &checkup.Cause{Stage: checkup.StageRules, Message: "the node's rules were not read: " + err.Error()}
	}
	return nil
}

func respond(ctx context.Context, stdout io.Writer, echo, http, health string) error {
	responder, err := probe.Listen(ctx, echo, http, health)
	if err != nil {
		return err
	}
	tick := time.NewTicker(200 * time.Millisecond) // the probe task waits for the last count after each look
	defer tick.Stop()
	return responder.Serve(ctx, stdout, tick.C)
}

// version returns the version of the module that this binary was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
