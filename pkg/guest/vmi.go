// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/fleet"
)

const (
	// network is the name of a VM's only interface.
	network = "net0"
	// Where the image of checkplan's own guest has its files.
	kernelPath = "/boot/vmlinuz"
	initrdPath = "/boot/initrd"
	// grace is how long another guest has to shut down, in seconds. Our own guest
	// has no data to save.
	grace = 5
	// expiry is how long a VM is kept after its own end: its run may be reading
	// evidence.
	expiry = 10 * time.Minute
)

// life is how long a VM of the worksheet may be needed, from its start.
func life(w *checkup.Worksheet) time.Duration {
	return time.Duration(w.Timeouts.Setup) + time.Duration(w.ProbeTimeout()) + expiry
}

// VMI returns the manifest of a VM of the worksheet, without its owner. It is pure
// except for the clock. The error is about a memory that is not a quantity.
func (g *Guests) VMI(w *checkup.Worksheet, vm int) (*kubevirtv1.VirtualMachineInstance, error) {
	e := w.Sources[vm]
	memory, err := resource.ParseQuantity(w.Guests.Guest.Memory)
	if err != nil {
		return nil, fmt.Errorf("guest.memory: %q is not a quantity: %w", w.Guests.Guest.Memory, err)
	}
	yes, no := true, false
	none := kubevirtv1.EvictionStrategyNone // a VM that moves would measure another path
	meta := g.meta(w)
	meta.Name = g.nameOf(w, vm)
	meta.Labels[fleet.LabelPair] = strconv.Itoa(vm / 2)
	vmi := &kubevirtv1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: kubevirtv1.SchemeGroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: meta,
		Spec: kubevirtv1.VirtualMachineInstanceSpec{
			Domain: kubevirtv1.DomainSpec{
				CPU:    &kubevirtv1.CPU{Cores: 1},
				Memory: &kubevirtv1.Memory{Guest: &memory},
				Devices: kubevirtv1.Devices{
					AutoattachPodInterface:   &no,
					AutoattachGraphicsDevice: &no,
					AutoattachMemBalloon:     &no,
					AutoattachSerialConsole:  &yes,
					LogSerialConsole:         &yes,
					DisableHotplug:           true,
					Interfaces: []kubevirtv1.Interface{{
						Name: network, InterfaceBindingMethod: binding(e.VM.Binding), MacAddress: e.VM.MAC,
					}},
				},
			},
			Networks: []kubevirtv1.Network{{Name: network, NetworkSource: kubevirtv1.NetworkSource{
				Multus: &kubevirtv1.MultusNetwork{NetworkName: e.VM.Network.String()},
			}}},
			Affinity:                      g.Fleet.BesideVM(w, vm, checkup.RoleGuest), // KubeVirt copies it to the VM's pod
			EvictionStrategy:              &none,
			TerminationGracePeriodSeconds: new(int64(0)),
		},
	}
	if w.Guests.Guest.Image == "" {
		vmi.Spec.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
			KernelArgs: console.KernelArgs(*e.VM, life(w)),
			Container: &kubevirtv1.KernelBootContainer{
				Image: g.Image, ImagePullPolicy: corev1.PullIfNotPresent, KernelPath: kernelPath, InitrdPath: initrdPath,
			},
		}}
		return vmi, nil
	}
	vmi.Spec.TerminationGracePeriodSeconds = new(int64(grace))
	init, err := cloudInit(w, e.VM)
	if err != nil {
		return nil, err
	}
	disk := func(name string, source kubevirtv1.VolumeSource) {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}},
		})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, kubevirtv1.Volume{Name: name, VolumeSource: source})
	}
	disk("disk", kubevirtv1.VolumeSource{ContainerDisk: &kubevirtv1.ContainerDiskSource{Image: w.Guests.Guest.Image}})
	disk("cloud-init", kubevirtv1.VolumeSource{CloudInitNoCloud: init})
	return vmi, nil
}

// meta is the metadata of a VM and of the anchor, without their names.
func (g *Guests) meta(w *checkup.Worksheet) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace:   g.Fleet.Namespace,
		Labels:      g.Fleet.Labels(w.Check, checkup.RoleGuest),
		Annotations: map[string]string{fleet.AnnotationExpires: g.now().Add(life(w) + expiry).UTC().Format(time.RFC3339)},
	}
	meta.Labels[checkup.LabelPlan] = g.Fleet.Plan
	meta.Labels[checkup.LabelManagedBy] = checkup.ManagedBy
	return meta
}

// anchor is the ConfigMap that owns the VMs of a check.
func (g *Guests) anchor(w *checkup.Worksheet) *corev1.ConfigMap {
	meta := g.meta(w)
	meta.Name = checkup.ObjectName(g.Fleet.RunUID, w.Check, checkup.RoleGuest, "")
	meta.OwnerReferences = g.Fleet.Owners()
	return &corev1.ConfigMap{ObjectMeta: meta}
}

func binding(b checkup.InterfaceBinding) kubevirtv1.InterfaceBindingMethod {
	if b == checkup.BindingSRIOV {
		return kubevirtv1.InterfaceBindingMethod{SRIOV: &kubevirtv1.InterfaceSRIOV{}}
	}
	return kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}
}

// cloudInit is the input of cloud-init in another guest: the addresses of its interface
// (network configuration version 2), and the login.
func cloudInit(w *checkup.Worksheet, vm *checkup.VM) (*kubevirtv1.CloudInitNoCloudSource, error) {
	addresses := slices.Sorted(maps.Values(vm.Addresses))
	networkData, err := yaml.Marshal(map[string]any{
		"version": 2,
		"ethernets": map[string]any{network: map[string]any{
			"match":     map[string]any{"macaddress": vm.MAC},
			"addresses": addresses,
			"dhcp4":     false,
			"dhcp6":     false,
			"accept-ra": false,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the guest's network data: %w", err)
	}
	config := map[string]any{"ssh_pwauth": false}
	if login := w.Guests.Guest.Login; login != nil {
		config["user"], config["password"] = login.User, login.Password
		config["chpasswd"] = map[string]any{"expire": false}
	}
	userData, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode the guest's user data: %w", err)
	}
	return &kubevirtv1.CloudInitNoCloudSource{
		UserData:    "#cloud-config\n" + string(userData),
		NetworkData: string(networkData),
	}, nil
}
