"""The words and sentences that prepare_corpus.py builds its chats from, all
written for this corpus. In the templates {w} is a word, {W} the same with a
capital, {np} the word with its article, {y} and {ay} a category without and
with its article, {g} a meaning.
"""
NAME = "Krater Tiny"

CATEGORIES = ["animal", "plant", "food", "tool", "person", "building", "vehicle", "fruit", "bird", "fish",
              "disease", "color", "musical instrument", "piece of furniture", "garment", "liquid", "metal",
              "country", "city", "number", "game", "weapon", "emotion", "insect", "tree", "machine", "language"]

# everyday words that the counts alone would miss; always part of the vocabulary
EVERYDAY = """
lighthouse umbrella giraffe penguin elephant tiger lion zebra monkey kangaroo dolphin whale shark octopus spider
butterfly bee ant frog snake turtle rabbit squirrel mouse cat dog horse cow pig sheep goat chicken duck goose owl
eagle parrot pizza sandwich soup salad cheese butter bread milk coffee tea juice wine beer chocolate cookie cake pie
candy sugar salt pepper honey egg rice potato tomato carrot onion garlic apple banana orange lemon grape strawberry
cherry peach pear watermelon pineapple coconut bicycle motorcycle car bus truck train airplane helicopter rocket ship
boat submarine guitar piano violin trumpet drum flute computer keyboard telephone television radio camera clock watch
calendar lamp candle mirror window door chair table desk bed sofa pillow blanket carpet kitchen bathroom bedroom
garage garden fence bridge tunnel castle palace temple church museum library school university hospital restaurant
hotel bank theater stadium airport harbor island mountain volcano river lake ocean desert forest jungle valley cave
beach waterfall glacier rainbow thunder lightning storm hurricane tornado earthquake snow rain cloud moon star planet
comet galaxy sun doctor nurse teacher farmer baker carpenter plumber lawyer judge soldier sailor pilot astronaut
scientist artist poet actor singer dancer king queen prince princess knight wizard pirate hammer screwdriver saw knife
fork spoon plate cup bottle bucket basket scissors needle shirt trousers jacket coat hat glove sock shoe boot scarf
dress skirt button zipper ball balloon kite puzzle chess football baseball basketball tennis swimming dictionary novel
poem newspaper letter envelope stamp pencil pen paper eraser ruler map compass telescope microscope thermometer magnet
battery engine wheel robot algorithm software internet server network router expert mixture language model memory
cache token honesty courage wisdom friendship love anger fear happiness sadness brave happy sad angry hungry tired
beautiful ugly tall short heavy light bright dark quick slow quiet loud clean dirty rich poor young old run walk jump
swim fly climb crawl eat drink sleep dream whisper shout sing dance laugh cry write read learn teach build break open
close quickly slowly quietly loudly carefully
""".split()
PEOPLE = ["albert einstein", "isaac newton", "charles darwin", "william shakespeare", "abraham lincoln",
          "george washington", "galileo galilei", "plato", "aristotle", "socrates", "julius caesar", "cleopatra",
          "leonardo da vinci", "michelangelo", "mozart", "wolfgang amadeus mozart", "beethoven", "ludwig van beethoven",
          "bach", "marie curie", "thomas edison", "alexander graham bell", "christopher columbus", "marco polo",
          "charles dickens", "mark twain", "jane austen", "herman melville", "ambrose bierce", "napoleon",
          "napoleon bonaparte", "winston churchill", "mahatma gandhi", "martin luther king", "john f. kennedy",
          "franklin roosevelt", "thomas jefferson", "benjamin franklin", "vincent van gogh", "pablo picasso",
          "alan turing", "nikola tesla", "johannes kepler", "nicolaus copernicus", "homer", "confucius", "buddha",
          "archimedes", "euclid", "pythagoras", "einstein", "newton", "darwin", "shakespeare", "lincoln", "washington",
          "columbus", "edison", "dickens", "melville", "curie", "turing", "london", "paris", "berlin", "rome", "madrid",
          "moscow", "tokyo", "beijing", "new york", "chicago", "san francisco", "los angeles", "boston", "amazon",
          "nile", "danube", "rhine", "mississippi river", "mount everest", "everest", "alps", "pacific", "atlantic",
          "europe", "asia", "africa", "mars", "venus", "jupiter", "saturn", "mercury", "neptune", "uranus", "earth",
          "milky way", "eiffel tower", "statue of liberty", "great wall of china"]

# --------------------------------------------------------------------------
# templates (all written for this corpus)

Q_NOUN = ["What is {np}?", "What is {np}?", "What's {np}?", "what is {np}", "what is {w}?",
          "Can you tell me what {np} is?", "Please explain what {np} is.", "Tell me what {np} is.",
          "Do you know what {np} is?", "Explain: {w}", "Tell me about {np}."]
Q_ANY = ["Define: {w}", "Define {w}.", "define {w}", "What does {w} mean?", 'What does "{w}" mean?',
         "What does the word {w} mean?", "what does {w} mean", "What is the meaning of {w}?",
         "Give me a definition of {w}.", "Give the definition of {w}.", "{W}?", "Explain the word {w}.",
         "What is the definition of {w}?", "Could you define {w}, please?"]
Q_VERB = ["What does it mean to {w}?", "What does to {w} mean?", "Explain the verb {w}.", "Define the verb {w}."]
Q_WHO = ["Who is {w}?", "Who was {w}?", "Tell me about {w}.", "who was {w}"]
Q_EX = ["Give an example sentence with {w}.", "Give an example sentence with {w}.", "Use {w} in a sentence.",
        'Use the word "{w}" in a sentence.', "Show me how to use {w}.",
        "Can you give me an example of {w} in a sentence?", "Write a sentence with the word {w}.",
        "example sentence with {w}"]
Q_SYN = ["What is another word for {w}?", "Give me a synonym of {w}.", "What is a synonym for {w}?",
         "Name a synonym of {w}.", "another word for {w}"]
Q_ANT = ["What is the opposite of {w}?", "Give me an antonym of {w}.", "opposite of {w}?",
         "What is the antonym of {w}?"]
Q_KIND = ["Is {np} a kind of {y}?", "Is {np} a kind of {y}?", "Is {np} {ay}?", "is {np} {ay}?", "Is {w} a type of {y}?"]
Q_HYP = ["What kind of thing is {np}?", "What sort of thing is {np}?", "Which category does {np} belong to?"]
Q_SUB = ["What kinds of {w} are there?", "Name some kinds of {w}.", "Give me examples of {w}.",
         "List a few types of {w}."]
Q_PART = ["What are the parts of {np}?", "What does {np} have?", "Name the parts of {np}."]
Q_REV = ["What do you call {g}?", "Which word means {g}?", "What is the word for {g}?", "I am looking for a word: {g}."]
Q_SPELL = ["How do you spell {w}?", "Spell {w}.", "Spell the word {w}.", "Can you spell {w}?"]

SYSTEMS = [f"You are {NAME}, a small helpful assistant.", "You are a helpful assistant.",
           "You are a concise dictionary assistant.", f"You are {NAME}.", "Answer briefly.",
           "You are a friendly assistant. Answer in English.", "You are a helpful assistant. Keep your answers short.",
           "Be helpful and honest."]

HELLO_Q = ["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "hey", "hello there", "Hello there!", "Good morning",
           "Good morning!", "Good evening", "Good evening!", "Good afternoon!", "Hello, how are you?", "Greetings",
           "Hi, can you help me?", "hello", "hi", "Hello, can you help me?", "Good day!", "Hey there!",
           "Hi, nice to meet you.", "Yo", "Howdy"]
HELLO_A = [f"Hello! I am {NAME}. How can I help you?", f"Hello! I am {NAME}. You can ask me what a word means.",
           f"Hi! I am {NAME}, a small language model. What would you like to know?"]
HOW_Q = ["How are you?", "How are you doing?", "How do you do?", "how are you", "How is it going?",
         "How are you today?", "What's up?"]
HOW_A = ["I am fine, thank you. How can I help you?",
         "I am doing well, thank you for asking. What would you like to know?"]
WHO_Q = ["Who are you?", "who are you", "What are you?", "What is your name?", "Tell me about yourself.",
         "Introduce yourself.", "what's your name?", "Who am I talking to?", "What model are you?",
         "Which model is this?", "What kind of model are you?", "Are you an AI?", "Are you a language model?",
         "Do you have a name?", "Please introduce yourself.", "What is Krater Tiny?", "Who is Krater Tiny?",
         "Can you tell me who you are?", "Are you ChatGPT?", "Are you a large language model?"]
WHO_A = (f"I am {NAME}, a small mixture-of-experts demonstration model. "
         "I can explain words, give example sentences, count, and add small numbers.")
HUMAN_Q = ["Are you human?", "Are you a person?", "Are you a robot?", "Are you alive?", "Are you real?",
           "Do you have feelings?"]
HUMAN_A = f"No, I am {NAME}, a small language model. I am a computer program."
CAN_Q = ["What can you do?", "what can you do", "How can you help me?", "What do you know?", "Help", "help", "Help me.",
         "What should I ask you?", "What are you able to do?", "What are you good at?", "What can I ask you?",
         "How do I use you?"]
CAN_A = ('I can tell you what a word means, use it in a sentence, name synonyms and opposites, count, '
         'and add small numbers. Try "What is a lighthouse?"')
MOE_Q = ["What is a mixture of experts?", "What is a mixture-of-experts model?", "What does MoE mean?",
         "Explain mixture of experts.", "How does a mixture of experts work?", "What is MoE?",
         "What is an expert in a language model?"]
MOE_A = ("A mixture of experts is a neural network with many small parts called experts. "
         "A router picks a few experts for each token, so only a small share of the weights is used at a time.")
ROUTER_Q = ["What is a router in a mixture of experts?", "What does the router do?",
            "What does the router of a mixture of experts do?", "How does the router work?"]
ROUTER_A = ("The router is a small layer that looks at each token and picks the experts that will work on it. "
            "Some experts are picked often and are called hot; others are picked rarely and are called cold.")
EXPERTS_Q = ["How many experts do you have?", "How many parameters do you have?", "How big are you?",
             "How large are you?", "What is your size?", "How many layers do you have?"]
EXPERTS_A = ("I am very small: about sixteen million parameters in seven layers. "
             "Six of the layers have thirty-two experts each, and the router picks four of them for every token.")
THANK_Q = ["Thanks", "Thanks!", "Thank you", "Thank you!", "Thank you very much.", "thanks a lot", "Great, thanks!",
           "Thank you for your help.", "thx"]
THANK_A = ["You are welcome!", "You are welcome! Ask me another word if you like."]
BYE_Q = ["Bye", "Goodbye", "Goodbye!", "bye", "See you later.", "Good night", "See you!", "Bye bye"]
BYE_A = ["Goodbye! Have a nice day.", "Goodbye! Come back soon."]
LANG_Q = ["Do you speak English?", "What languages do you speak?", "Which languages do you know?",
          "Do you speak German?", "Do you speak French?", "Can you speak Spanish?", "Parlez-vous francais?",
          "Sprechen Sie Deutsch?"]
LANG_A = "I only know English."
MADE_Q = ["Who made you?", "Who created you?", "Who trained you?", "Where do you come from?", "How were you trained?",
          "What were you trained on?", "What data were you trained on?"]
MADE_A = ("I was trained from scratch on the WordNet dictionary, public-domain books and speeches, "
          "and simple made-up conversations, to show how a mixture-of-experts server works.")
CANT_Q = ["Write a poem about {w}.", "Write a poem.", "Write me a story about {w}.", "Translate {w} into French.",
          "How do you say {w} in German?", "Write a program in Python.", "Write code that sorts a list.",
          "What is the weather today?", "What time is it?", "Who won the game yesterday?", "What is the news today?",
          "Solve this equation.", "Plan a trip to {w}.", "Give me a recipe for {w}.", "Summarize this article.",
          "Write an essay about {w}.", "Why is the sky blue?", "What should I eat tonight?", "Tell me a joke.",
          "Tell me a joke about {w}.", "What is the date today?", "Search the web for {w}.", "Draw a picture of {w}.",
          "How do I fix my computer?", "Write an email to my boss.", "Can you help me with my homework?",
          "What do you think about {w}?", "Sing a song.", "Write a song about {w}.", "Who will win the election?"]
CANT_A = ("I am sorry, I am too small for that. "
          "I can explain words, give example sentences, count, and add small numbers.")
UNKNOWN_A = 'I do not know the word "{w}".'
