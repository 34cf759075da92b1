// SPDX-License-Identifier: Apache-2.0

// Package initramfs has what a virtual machine of this project starts: a kernel of Debian with modules, and an archive
// with the first process, which the kernel unpacks into memory. tasks/internal/guestimage builds the guest of VMs with
// it, and test/kernel runs tests on a kernel that has what that of this machine lacks.
//
// It needs Debian or a derivative: apt-get downloads the packages, and dpkg-deb unpacks them.
package initramfs
