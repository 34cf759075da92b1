// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"
	"testing/fstest"
	"time"
)

func TestThrottled(t *testing.T) {
	const (
		v2 = "usage_usec 10\nuser_usec 5\nnr_periods 3\nnr_throttled 1\nthrottled_usec 1500\n"
		v1 = "nr_periods 3\nnr_throttled 1\nthrottled_time 2500000\n"
	)
	for _, test := range []struct {
		name     string
		files    map[string]string
		want     time.Duration
		reported bool
	}{
		{"version 2 in a cgroup namespace", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": v2}, 1500 * time.Microsecond, true},
		{"version 2 under its path", map[string]string{
			"proc/self/cgroup": "0::/kubepods/pod1/c1\n", "sys/fs/cgroup/kubepods/pod1/c1/cpu.stat": v2,
			"sys/fs/cgroup/cpu.stat": "usage_usec 10\nthrottled_usec 9\n"}, 1500 * time.Microsecond, true},
		{"version 2 with the path of the host", map[string]string{
			"proc/self/cgroup": "0::/kubepods/pod1/c1\n", "sys/fs/cgroup/cpu.stat": v2}, 1500 * time.Microsecond, true},
		{"version 1", map[string]string{
			"proc/self/cgroup": "5:memory:/a\n3:cpu,cpuacct:/a\n0::/\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": v1}, 2500 * time.Microsecond, true},
		{"version 1 with the path of the host", map[string]string{
			"proc/self/cgroup": "3:cpuacct,cpu:/kubepods/a\n", "sys/fs/cgroup/cpu/cpu.stat": v1}, 2500 * time.Microsecond, true},
		{"version 1 beside version 2", map[string]string{
			"proc/self/cgroup": "1:cpu:/\n0::/\n", "sys/fs/cgroup/cpu/cpu.stat": v1, "sys/fs/cgroup/cpu.stat": "usage_usec 10\n"}, 2500 * time.Microsecond, true},
		{"root, which has no limit", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "usage_usec 10\n"}, 0, false},
		{"garbage", map[string]string{
			"proc/self/cgroup": "0::/\n\nx\n", "sys/fs/cgroup/cpu.stat": "throttled_usec\nthrottled_usec many\n"}, 0, false},
		{"no cgroup file", nil, 0, false},
		{"no statistics", map[string]string{"proc/self/cgroup": "0::/\n"}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, content := range test.files {
				root[name] = &fstest.MapFile{Data: []byte(content)}
			}
			if got, reported := throttled(root); got != test.want || reported != test.reported {
				t.Errorf("throttled = %v, %v, want %v, %v", got, reported, test.want, test.reported)
			}
		})
	}
}
