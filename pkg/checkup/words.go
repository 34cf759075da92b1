// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"strings"
)

// Count prints a number with its noun, in the plural unless it is 1: "1 pair",
// "2 pairs".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// CountAre begins a sentence about things: "1 node is", "2 nodes are".
func CountAre(n int, noun string) string {
	if n == 1 {
		return Count(n, noun) + " is"
	}
	return Count(n, noun) + " are"
}

// Some prints at most five names, and how many more there are: "a, b, c, d, e and 3
// more".
func Some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// SomeOf prints at most three names; of more it prints only the number, with the noun:
// "a, b, c", "4 nodes".
func SomeOf(names []string, noun string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return Count(len(names), noun)
}

// OneLine makes one line of valid UTF-8 of a text: white space becomes one space, and what is no UTF-8 "?". What does
// not print stays: see Clean.
func OneLine(s string) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
}

// Shorten cuts a text to at most so many bytes, and ends what it cut with "...", which it does not count.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// NoExamples is a message of k8s.io/apimachinery's validation of names and labels without its examples and regular
// expression.
func NoExamples(message string) string {
	before, _, _ := strings.Cut(message, " (e.g. ")
	return before
}
