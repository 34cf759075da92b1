// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"testing"
)

// FuzzUnpack: any archive of a kernel package is understood or is an error. Compressed modules are left to xz.
func FuzzUnpack(f *testing.F) {
	f.Add(packed(f, map[string][]byte{
		"./boot/vmlinuz-6.1": []byte("kernel"), "./lib/modules/6.1/virtio_net.ko": []byte("\x7fELF"), "./lib/modules/6.1/virtio.ko": nil,
	}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if !bytes.Contains(b, xz) {
			if k, err := UnpackTar(bytes.NewReader(b)); err == nil {
				_, _ = k.Modules("virtio_net")
			}
		}
	})
}

// FuzzModule: any ELF file is understood or is an error, and modules that need one another do not recurse for ever.
func FuzzModule(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"), "depends=b\x00alias=pci:*", "depends=a")
	f.Fuzz(func(t *testing.T, content []byte, a, b string) {
		if !bytes.HasPrefix(content, xz) {
			_, _ = readModule("m", content)
		}
		files := map[string][]byte{"a": moduleFile(t, a), "b": moduleFile(t, b)}
		_, _ = closure(nil, files, "a")
	})
}
