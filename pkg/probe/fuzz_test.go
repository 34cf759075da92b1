// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"
	"testing/fstest"
)

// FuzzThrottled: any files of a cgroup are understood or ignored.
func FuzzThrottled(f *testing.F) {
	f.Add("0::/kubepods/pod1\n", "throttled_usec 12\n")
	f.Add("4:cpu,cpuacct:/a\n0::/../..\n", "throttled_time -9223372036854775808\n")
	f.Add(":::\n", "throttled_usec 99999999999999999999")
	f.Fuzz(func(_ *testing.T, own, stat string) {
		file := &fstest.MapFile{Data: []byte(stat)}
		throttled(fstest.MapFS{"proc/self/cgroup": {Data: []byte(own)}, "sys/fs/cgroup/cpu.stat": file, "sys/fs/cgroup/cpu/cpu.stat": file})
	})
}
