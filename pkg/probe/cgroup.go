// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// throttled returns for how long the CPU bandwidth limit has throttled this process's cgroup so far; false if that is
// unknown. root is the root of the file system. The formats are those of the kernel's cgroup-v2.rst (throttled_usec)
// and sched-bwc.rst (version 1: throttled_time, in nanoseconds).
func throttled(root fs.FS) (time.Duration, bool) {
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for _, file := range cpuStats(string(own)) {
		stat, err := fs.ReadFile(root, file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(stat)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case err != nil:
			case key == "throttled_usec":
				return time.Duration(n) * time.Microsecond, true
			case key == "throttled_time":
				return time.Duration(n), true
			}
		}
	}
	return 0, false
}

// cpuStats returns the files that may contain the CPU statistics of the cgroup in /proc/self/cgroup, the likeliest
// first. A container's own cgroup is under that path or, in a cgroup namespace or with some runtimes, at the top.
func cpuStats(own string) []string {
	var files []string
	for line := range strings.Lines(own) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case controllers == "":
			files = append(files, path.Join("sys/fs/cgroup", group, "cpu.stat"), "sys/fs/cgroup/cpu.stat")
		case slices.Contains(strings.Split(controllers, ","), "cpu"):
			for _, mount := range []string{"cpu", "cpu,cpuacct"} {
				files = append(
					files,
					path.Join("sys/fs/cgroup", mount, group, "cpu.stat"),
					path.Join("sys/fs/cgroup", mount, "cpu.stat"),
				)
			}
		}
	}
	return files
}
