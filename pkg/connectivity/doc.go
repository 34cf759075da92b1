// SPDX-License-Identifier: Apache-2.0

// Package connectivity writes objects of OpenShift's kind PodNetworkConnectivityCheck
// (controlplane.operator.openshift.io/v1alpha1): one object for each pair of a check that reports every measurement as
// a checkup.Result.
//
//	EnsureCRD  setup     checks for the CustomResourceDefinition, or creates it
//	Open       probe     reads the objects that earlier runs wrote
//	Book       probe     receives Results, Observation and Source; Run writes
//	Retire     conclude  marks old objects Unknown; deletes those of removed pairs
//	Rights               the rights that all of this needs
//
// The objects are in the run's namespace and have no owner, because their history must outlive the run. Their labels
// name the check that wrote them last: a pair that several checks measure has one object and one history. If several
// runs write at the same time, the last write wins.
//
//	$ kubectl get podnetworkconnectivitychecks
//	NAME                                           REACHABLE   SINCE
//	kube-apiserver-cp-1-to-etcd-server-cp-1-2379   True        3d
//	kube-apiserver-cp-1-to-etcd-server-cp-2-2379   False       12s
//
//	apiVersion: controlplane.operator.openshift.io/v1alpha1
//	kind: PodNetworkConnectivityCheck
//	metadata:
//	  name: kube-apiserver-cp-1-to-etcd-server-cp-2-2379
//	  labels:
//	    app.kubernetes.io/managed-by: checkplan
//	    checkplan.dev/plan: day-2
//	    checkplan.dev/check: api
//	  annotations:
//	    checkplan.dev/stale-after: 10m0s
//	    checkplan.dev/retention: 2h0m0s
//	    checkplan.dev/target: etcd-server-cp-2
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
// # The status
//
// The lists are as long as those of OpenShift's operators, newest first: 10 successes, 10 failures, 20 outages, each
// with up to 5 start logs (the first failure, and each failure whose message differs from the one before) and the last
// 5 end logs. Reasons and wording are also those of the operators.
//
//	stage      succeeded    failed
//	resolve    DNSResolve   DNSError
//	connect    TCPConnect   TCPConnectError
//	handshake  -            TLSHandshakeError   e.g. accepted, then silent
//	response   -            HTTPResponseError
//
// A measurement adds an entry for each stage that passed and has a reason, and one for the stage that failed. An
// entry's time is the start of its stage; its latency is the duration of the stage, empty for a failed stage. A target
// that accepts connections and then sends nothing has TCPConnect in its successes and TLSHandshakeError in its
// failures. It is not Reachable: only a measurement that passed every stage is a success.
//
// An outage lasts from the start of the first failed measurement (one is enough) to the start of the next one that
// did not fail: exactly checkup.Outages, continued from run to run.
//
// The condition Reachable is True with the reason TCPConnectSuccess, or False with the reason of the latest failure.
// Its transition time is the start of the measurement that changed it. It is Unknown, which OpenShift's operators never
// set, if there is no result for staleAfter or three intervals, whichever is longer (NoRecentResult; SourceNotReporting
// if the source's agent did not start or was lost), or if the source reported that it cannot measure (NotMeasured). A
// pair without any result in a run is Unknown at the end of the run. While nothing runs, nothing writes: an object
// keeps the state of the last run. Readers therefore compare the time of the newest entry in successes and failures
// with the annotation checkplan.dev/stale-after. The next run of any plan with such objects in the namespace sets what
// is too old to Unknown. The next run of the same plan deletes the objects of its checks whose pairs no check of the
// plan expects, after the time in checkplan.dev/retention. A run of any plan deletes the objects of other checks and
// plans 35 days after their last result, or after their retention if it is longer: it does not know what those expect.
//
// Times are written with fractions of a second, which metav1.Time would truncate.
//
// # Order, retries, and an unavailable API server
//
// The status is a left fold of the results, and the object contains everything that the fold needs: a run continues
// where the last one ended, and a retry of the probe task skips the results that its earlier try recorded. Results that
// arrive late, by up to the sum of the deadlines and an interval, are still inserted in order.
//
// A Book writes the newest status, never a queue of changes. While the API server is unavailable, results are folded in
// memory; the first write after that (at most 5 s later) contains every outage of the meantime. A starting API server
// knows neither the CRD nor its roles for a second or two: therefore not found and forbidden are retried. A first
// result and a change of the condition are written at once. Otherwise an object is written every 30 s or after 20 new
// results, and less often if there are more than 750 objects (10,000: every 400 s). At most 50 objects are written per
// second, changed ones first.
//
// Writes are server-side apply with the field manager checkplan, forced for the fields above. A deleted object is
// created again with its history; the next write corrects an object that someone changed. Only objects with the three
// labels above are written: if an object with a pair's name belongs to someone else, the pair is not written, and the
// log reports that. Pairs whose target has no known address have no object. spec.sourcePod is the component's pod of
// this run; the object keeps its name if a rollout renames the pod.
//
// # Events
//
// The start and the end of an outage are recorded as events of the source's node: Warning ConnectivityOutageDetected,
// Normal ConnectivityRestored. After 30 events within 30 s, events are held back for 30 min, or until Close, and then
// combined into one event per node and reason, with a line for each. An event's name is a hash of its content, because
// a retry must not record it twice.
package connectivity
