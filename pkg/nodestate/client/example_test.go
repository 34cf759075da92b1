// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"fmt"
	"time"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// A program that prints the state of its node after each change. Its flags are --target, --once and more.
func Example() {
	client.Run(printState) // func main() { client.Run(printState) }
}

func printState(items []*api.ServiceEndpoints) {
	fmt.Println("#", time.Now())
	for _, item := range items {
		fmt.Println(item)
	}
}

// A proxy that changes its rules one by one.
func ExampleStore() {
	var store client.Store
	states := [][]*api.ServiceEndpoints{
		{service("web", "10.0.0.1:8080", "10.0.0.2:8080")},
		{service("web", "10.0.0.2:8080", "10.0.0.3:8080")},
		{service("api", "10.0.0.9:8080")},
	}
	for _, state := range states { // range new(client.EndpointsClient).States(ctx)
		for _, change := range store.Set(state) {
			fmt.Println(change)
		}
		fmt.Println()
	}
	// Output:
	// create service shop/web
	// create port shop/web IPv4 http/TCP
	// create endpoint shop/web IPv4 http/TCP 10.0.0.1:8080
	// create endpoint shop/web IPv4 http/TCP 10.0.0.2:8080
	//
	// create endpoint shop/web IPv4 http/TCP 10.0.0.3:8080
	// delete endpoint shop/web IPv4 http/TCP 10.0.0.1:8080
	//
	// delete endpoint shop/web IPv4 http/TCP 10.0.0.2:8080
	// delete endpoint shop/web IPv4 http/TCP 10.0.0.3:8080
	// delete port shop/web IPv4 http/TCP
	// delete service shop/web
	// create service shop/api
	// create port shop/api IPv4 http/TCP
	// create endpoint shop/api IPv4 http/TCP 10.0.0.9:8080
}
