// SPDX-License-Identifier: Apache-2.0

// Package api is KEP-2094's API as Go code, which protoc-gen-go and protoc-gen-go-grpc generate from endpoints.proto.
// To generate it again:
//
//	UPDATE=1 go test ./pkg/nodestate/api
package api
