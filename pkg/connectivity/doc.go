// SPDX-License-Identifier: Apache-2.0

// Package connectivity keeps OpenShift's PodNetworkConnectivityCheck
// (controlplane.operator.openshift.io/v1alpha1): one object for each pair of a
// check that tells every measurement as a checkup.Result.
//
//	EnsureCRD  setup     the CustomResourceDefinition is there, or why not
//	Open       probe     the objects as earlier runs left them
//	Book       probe     Results, Observation and Source come in; Run writes
//	Retire     conclude  what was last seen too long ago; pairs that are gone
//	Rights               what all this asks of the API server
//
// The objects stand in the run's namespace and have no owner, so that their
// history outlives the run. Their labels name the check that wrote them last: a
// pair that several checks measure has one object and one history. Of runs at the
// same time the last one to write has its say.
//
//	$ kubectl get podnetworkconnectivitychecks
//	NAME                                          TARGET ENDPOINT   REACHABLE   SINCE   AGE
//	kube-apiserver-cp-1-to-etcd-server-cp-1-2379  10.0.0.1:2379     True        3d      3d
//	kube-apiserver-cp-1-to-etcd-server-cp-2-2379  10.0.0.2:2379     False       12s     3d
//
//	apiVersion: controlplane.operator.openshift.io/v1alpha1
//	kind: PodNetworkConnectivityCheck
//	metadata:
//	  name: kube-apiserver-cp-1-to-etcd-server-cp-2-2379
//	  labels:
//	    app.kubernetes.io/managed-by: checkplan
//	    checkplan.dev/plan: day-2
//	    checkplan.dev/check: api
//	spec:
//	  sourcePod: kube-apiserver-cp-1
//	  targetEndpoint: 10.0.0.2:2379
//	  tlsClientCert:
//	    name: etcd-client
//	status:
//	  conditions:
//	  - type: Reachable
//	    status: "False"
//	    reason: TCPConnectError
//	    message: 'etcd-server-cp-2: failed to establish a TCP connection to 10.0.0.2:2379: connection refused'
//	    lastTransitionTime: "2026-11-21T06:00:02.000000001Z"
//	  failures:
//	  - time: "2026-11-21T06:00:02.000000001Z"
//	    success: false
//	    reason: TCPConnectError
//	    message: 'etcd-server-cp-2: failed to establish a TCP connection to 10.0.0.2:2379: connection refused'
//	  successes:
//	  - time: "2026-11-21T06:00:01.000000001Z"
//	    success: true
//	    reason: TCPConnect
//	    message: 'etcd-server-cp-2: tcp connection to 10.0.0.2:2379 succeeded'
//	    latency: 241µs
//	  outages:
//	  - start: "2026-11-21T06:00:02.000000001Z"
//	    message: Connectivity outage detected at 2026-11-21T06:00:02.000000001Z
//	    startLogs: [...]
//	    endLogs: [...]
//
// # What the status says
//
// The lists are as long as OpenShift's operators keep them, newest first: 10
// successes, 10 failures, 20 outages, each with up to 5 start logs (the first
// failure, and those that were worded otherwise than the one before) and the
// last 5 end logs. Reasons and wording are theirs too.
//
//	stage      succeeded    failed
//	resolve    DNSResolve   DNSError
//	connect    TCPConnect   TCPConnectError
//	handshake  -            TLSHandshakeError   e.g. accepted, then silent
//	response   -            HTTPResponseError
//
// A measurement adds an entry for each stage that it passed and that has a
// reason, and one for the stage that failed, if one did. An entry's time is when
// its stage began, its latency how long the stage took; a failed stage has none.
// So a target that accepts connections and then stays silent has TCPConnect
// among its successes and TLSHandshakeError among its failures, and is not
// Reachable: only a measurement that passed every stage is a success.
//
// An outage goes from the start of the first measurement that failed (one is
// enough) to the start of the first one after it that did not: exactly
// checkup.Outages, continued from run to run.
//
// The condition Reachable is True with the reason TCPConnectSuccess, or False
// with the reason of the latest failure, and changed when the measurement began
// that changed it. It is Unknown, which OpenShift's operators never say, where
// there is no result for staleAfter or three intervals, whichever is longer
// (NoRecentResult; SourceNotReporting if the source's agent did not start or was
// lost), or where the source said that it cannot measure (NotMeasured). A pair
// without any result in a run is Unknown at its end. After a run, an object says
// what that run saw last; no one watches until the next.
//
// Times are written with their fraction of a second, which metav1.Time would
// cut off.
//
// # Order, retries, and an API server that is away
//
// The status is a left fold of the results, and what is in the object is all
// that the fold needs: a run goes on where the last one ended, and a retry of the
// probe task leaves out what its earlier try kept. Results may come late by the
// sum of the deadlines and an interval, and then still take their place.
//
// A Book writes the newest status, never a queue of changes. While the API
// server is away, results are folded in memory, and the one write when it is back
// (5 s later at the most) holds every outage of meanwhile. A server that starts
// knows neither the CRD nor its roles for a second or two: that nothing is found,
// or everything forbidden, is taken for that and tried again. A first result and a change of the condition
// are written at once; else an object is written every 30 s, or with 20 new
// results, and less often where there are more than 750 of them (10,000: every
// 400 s). No more than 50 objects are written per second, those that changed
// first.
//
// Writes are server-side apply by the field manager checkplan, forced for the
// fields above. An object that someone deleted is made anew with its history, and
// one that someone changed is put right by the next write. Only objects with the
// three labels above are touched: where an object of a pair's name is another's,
// the pair is not written, and the log says so. Pairs whose target has no known
// address have no object. spec.sourcePod is the component's pod of this run;
// where rollouts rename it, the object's name does not change with it.
//
// # Events
//
// The begin and the end of an outage are events of the source's node: Warning
// ConnectivityOutageDetected, Normal ConnectivityRestored. Beyond 30 in 30 s they
// are held back for 30 min, or until Close, and then told by one event for each
// node and reason, with a line for each. An event's name is made of what it tells,
// so that no retry tells it twice.
package connectivity
