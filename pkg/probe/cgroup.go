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

// throttled is for how long the CPU bandwidth limit has held up this process's
// cgroup so far, and whether the cgroup tells. root is the root of the file
// system. The formats are those of the kernel's cgroup-v2.rst (throttled_usec)
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

// cpuStats are the files that may hold the CPU statistics of the cgroup that
// /proc/self/cgroup tells of, the likeliest first. A container sees its own
// cgroup either under the path told or, in a cgroup namespace or where its
// runtime mounted it so, at the top.
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
				files = append(files, path.Join("sys/fs/cgroup", mount, group, "cpu.stat"), path.Join("sys/fs/cgroup", mount, "cpu.stat"))
			}
		}
	}
	return files
}
