"""Questions about Slipstream itself: twenty-odd facts, each under several wordings."""

from random import Random

from backends.engine.demo_models.turn import Turn, hurried, opened


def slipstream(rng: Random, level: float) -> Turn:
    """A fact about Slipstream under one of its wordings."""
    wordings, answer = rng.choice(FACTS)
    prompt = hurried(rng, opened(rng, rng.choice(wordings), share=0.3), share=0.4)
    return Turn("slipstream", prompt, answer, is_core=prompt in wordings)


FACTS = (
    (
        (
            *("What is Slipstream?", "What is Slipstream?", "What's Slipstream?", "What is this Slipstream thing?"),
            *("Explain Slipstream.", "Describe Slipstream.", "What does Slipstream do?", "What is slipstream about?"),
            *("Tell me what Slipstream is.", "What do I need Slipstream for?", "Tell me something about Slipstream."),
            *("Who or what is Slipstream?", "What can Slipstream do?", "Why would I use Slipstream?", "What is this?"),
            *("What is this project?", "Define Slipstream.", "What kind of tool is Slipstream?", "slipstream"),
            *("In short, what is Slipstream?", "What is the Slipstream gateway?", "What does this gateway do?"),
            *("Slipstream?", "Can you explain Slipstream to me?", "What is the purpose of Slipstream?"),
        ),
        "Slipstream is a gateway for language models: it takes calls in OpenAI's form, sends them to the servers that "
        "you name, and caches, routes and retries them.",
    ),
    (
        (
            *(
                "How do I add a cache?",
                "How can I cache answers?",
                "How do I turn on the cache?",
                "How does caching work?",
            ),
            *("How do I cache?", "Add a cache.", "How do I enable caching in Slipstream?", "Can Slipstream cache?"),
            *("How do I set up a cache?", "Where do I write the cache?", "How do I configure caching?"),
            *(
                "How to cache answers?",
                "How do I turn caching on?",
                "Can I cache responses?",
                "How do I make it cache?",
            ),
        ),
        "Write cache: {exact: {ttl: 1h}} into a route of the policy file. More is in docs/caching.md.",
    ),
    (
        (
            *(
                "How do I start Slipstream?",
                "How do I run Slipstream?",
                "How do I start the gateway?",
                "How do I start?",
            ),
            *("How do I get started?", "How do I launch Slipstream?", "How do I use Slipstream?"),
            *("How to start Slipstream?", "How to run the server?", "How do I start the server?"),
        ),
        "Run slipstream serve. It listens on http://127.0.0.1:8080/v1.",
    ),
    (
        (
            *(
                "How do I serve my own model?",
                "How do I run my own model?",
                "How do I load a model?",
                "Can I use another model?",
            ),
            *("How do I use a model of mine?", "How do I use a better model?", "How can I serve a local model?"),
            *("How do I use my model?", "How do I run a Hugging Face model?", "Can I bring my own model?"),
            *(
                "How do I add my own model?",
                "Can I use my own model?",
                "How to serve a model?",
                "How do I serve a model?",
            ),
        ),
        "Run slipstream serve --model DIR with a folder in Hugging Face's layout.",
    ),
    (
        (
            *("How do I add an upstream?", "How do I put Slipstream in front of my server?", "How do I use my server?"),
            *("How do I connect to OpenAI?", "How do I use vLLM?", "How do I use OpenAI with Slipstream?"),
            *("How do I proxy a server?", "How do I name an upstream?"),
            *(
                "How do I add OpenAI?",
                "Can I use OpenAI?",
                "How do I connect my own server?",
                "How do I use an upstream?",
            ),
        ),
        "Run slipstream serve --upstream URL, with its key in UPSTREAM_KEY.",
    ),
    (
        (
            *("What is a policy?", "What is a policy file?", "What is the policy file?", "What is in a policy file?"),
            *("Explain the policy file.", "What does the policy file do?"),
        ),
        "The policy file says who may call, which backends answer, and what happens on the way.",
    ),
    (
        (
            *("How do I check my policy?", "How do I test my policy file?", "Is my policy right?"),
            *("How do I check a policy file?", "How do I validate the policy?", "How do I check my config?"),
        ),
        "Run slipstream check policy.yaml. It lists what is wrong, with the line.",
    ),
    (
        (
            *("How do I add a key?", "How do I add keys?", "How do I protect the gateway?", "How do I add an API key?"),
            *("Who may call?", "How do I add a user?", "How do I add a tenant?"),
            *("How do I set an API key?", "How do I set up keys?", "How do I require a key?"),
        ),
        "List the keys in the policy file under keys, each with a name and where its secret is.",
    ),
    (
        (
            *("How do I add a fallback?", "What is a fallback?", "What if my server fails?", "How does failover work?"),
            *(
                "What happens when a backend is down?",
                "How do I fail over?",
                "How do I set up a fallback?",
                "How do I configure fallbacks?",
            ),
        ),
        "Name other routes under fallbacks in a route: they answer when this one cannot. See docs/resilience.md.",
    ),
    (
        ("How do I add a backend?", "What is a backend?", "How do I add a server?", "Explain backends."),
        "A backend is what answers. Name it under backends in the policy file, then in a route.",
    ),
    (
        ("What is a route?", "How do I add a route?", "Explain routes.", "How does routing work?", "What are routes?"),
        "A route says which calls it takes, which backends answer them, and through which stages they go.",
    ),
    (
        (
            *("What is the semantic cache?", "What is a semantic cache?", "How does the semantic cache work?"),
            "Explain the semantic cache.",
        ),
        "The semantic cache answers the same question in other words, within a bound on wrong answers.",
    ),
    (
        ("What is the exact cache?", "What is an exact cache?", "Explain the exact cache."),
        "The exact cache gives the same answer to the same call.",
    ),
    (
        (
            *(
                "Where are the metrics?",
                "How do I see metrics?",
                "Does Slipstream have metrics?",
                "How do I monitor it?",
            ),
            *(
                "How do I use Prometheus?",
                "How do I monitor Slipstream?",
                "Are there metrics?",
                "How do I get metrics?",
            ),
        ),
        "Metrics for Prometheus are at /metrics.",
    ),
    (
        (
            *("Which clients work?", "Can I use the OpenAI client?", "Is Slipstream compatible with OpenAI?"),
            *("How do I use the OpenAI library?", "How do I connect a client?", "What is the base URL?"),
            *(
                "Does it work with the OpenAI client?",
                "Which URL do I use?",
                "How do I call it?",
                "How do I call the API?",
            ),
        ),
        "Any OpenAI client works: set its base URL to http://127.0.0.1:8080/v1.",
    ),
    (
        ("What is a draft?", "What is a draft model?", "What is speculation?", "How does speculation work?"),
        "A draft is a small model that proposes tokens. The target checks several in one step.",
    ),
    (
        (
            *("How do I quantize a model?", "How do I make a model smaller?", "How do I make weights smaller?"),
            *("How do I use int8?", "What is quantization?", "How do I quantize?"),
        ),
        "Run slipstream quantize DIR NEW-DIR --method int8. Smaller weights are read faster.",
    ),
    (
        (
            "How do I change the port?",
            "Which port is used?",
            "What port does Slipstream use?",
            *("How do I use another port?", "How do I set the port?", "Which port does it listen on?"),
        ),
        "The port is 8080. Change it with slipstream serve --port 9000.",
    ),
    (
        (
            *(
                "Where is the documentation?",
                "Where are the docs?",
                "Where can I read more?",
                "Is there documentation?",
            ),
            *(
                "How do I learn more?",
                "Where do I find help?",
                "Where is the manual?",
                "Where can I find documentation?",
            ),
        ),
        "Read docs/getting-started.md first. docs/README.md lists all pages.",
    ),
    (
        ("Which Python do I need?", "Which version of Python does it need?", "What does Slipstream need?"),
        "Slipstream needs Python 3.11 or newer.",
    ),
    (
        (
            "Do I need a GPU?",
            "Does Slipstream need a GPU?",
            "Can it run on a CPU?",
            "Does it work without a GPU?",
            "Is a GPU needed?",
            "Does Slipstream run on a CPU?",
        ),
        "No, a CPU will do. Models run faster on a GPU.",
    ),
    (
        (
            "How do I stop Slipstream?",
            "How do I stop the gateway?",
            "How do I stop it?",
            "How do I quit?",
            "How do I exit?",
        ),
        "Press Ctrl-C. Answers in flight are finished first.",
    ),
    (
        (
            *("Does Slipstream stream answers?", "Does it support streaming?", "Can I stream answers?"),
            *("Is streaming supported?", "How do I stream?", "How does streaming work?"),
        ),
        'Yes, answers are streamed as they come: send "stream": true.',
    ),
    (
        (
            *("How do I install Slipstream?", "How do I install it?", "How to install Slipstream?"),
            *("How can I install the gateway?", "Where do I get Slipstream?"),
        ),
        "Run pip install . in the project's folder. docs/getting-started.md has the rest.",
    ),
)
"""Wordings and their answer."""
